-- The table retired, with what an erasure does to each row: erased, or nothing.
-- needs: retired, selected
-- makes: temp view marked_retired (*, change)
create or replace temp view marked_retired as
select *, case when interaction_id in (select interaction_id from selected) then 'erased' end as change
from retired
