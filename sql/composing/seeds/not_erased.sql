-- Seeds without an erased exchange, unchanged.
-- needs: erased_seeds, seeds
-- makes: rows (*)
select *
from seeds
where row_id not in (select row_id from erased_seeds)
