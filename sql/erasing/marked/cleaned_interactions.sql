-- The table cleaned_interactions, with what an erasure does to each row: erased, or nothing.
-- needs: cleaned_interactions, derived
-- makes: temp view marked_cleaned_interactions (*, change)
create or replace temp view marked_cleaned_interactions as
select *, case when interaction_id in (select interaction_id from derived) then 'erased' end as change
from cleaned_interactions
