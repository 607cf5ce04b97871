-- The table contamination, with what an erasure does to each row: erased, or nothing.
-- needs: contamination, derived
-- makes: temp view marked_contamination (*, change)
create or replace temp view marked_contamination as
select *, case when interaction_id in (select interaction_id from derived) then 'erased' end as change
from contamination
