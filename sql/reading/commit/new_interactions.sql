-- The batch's rows for `interactions`.
-- needs: row_decisions, staged
-- makes: temp view new_interactions (*, emptied)
create or replace temp view new_interactions as
select * exclude (object, row, part, error_code, message), cast(null as varchar) as emptied
from staged
anti join (select object, row, part from row_decisions where fresh and not kept) as left_out using (object, row, part)
