-- Seeds without evaluation items, unchanged.
-- needs: contaminated, seeds
-- makes: rows (*)
select *
from seeds
where row_id not in (select interaction_id from contaminated)
