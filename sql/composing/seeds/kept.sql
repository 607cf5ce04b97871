-- The other seeds, as they stood.
select *
from seeds
where row_id not in (select interaction_id from contaminated)
