-- What the batch brings to `feedback`.
create or replace temp view new_feedback as
select * exclude (object, row, part, extra, copied)
from staged_feedback
