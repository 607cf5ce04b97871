-- Number of seeds with an evaluation item, by source.
-- needs: contaminated, seeds
-- makes: rows (source, rows)
select source, count(*) as rows
from seeds
where row_id in (select interaction_id from contaminated)
group by source
order by source
