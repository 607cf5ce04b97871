-- The table judgements, with what an erasure does to each row: erased, or nothing.
-- needs: judgements, derived
-- makes: temp view marked_judgements (*, change)
create or replace temp view marked_judgements as
select *, case when interaction_id in (select interaction_id from derived) then 'erased' end as change
from judgements
