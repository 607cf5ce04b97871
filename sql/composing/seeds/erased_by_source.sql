-- Number of seeds with an erased exchange, by source.
-- needs: erased_seeds, seeds
-- makes: rows (source, rows)
select source, count(*) as rows
from seeds
join erased_seeds using (row_id)
group by source
order by source
