-- What the batch brings to `feedback`. The run ties it to interactions at its end (sql/feedback).
create or replace temp view new_feedback as
select * exclude (object, row, part, extra, copied), cast(null as varchar) as given_id, cast(null as varchar) as tie
from staged_feedback
