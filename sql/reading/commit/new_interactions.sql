-- What the batch brings to `interactions`.
create or replace temp view new_interactions as
select * exclude (object, row, part, error_code, message)
from staged
anti join (select object, row, part from judged where fresh and not kept) as left_out using (object, row, part)
