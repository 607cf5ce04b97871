-- How many seeds of each source hold an evaluation item.
select source, count(*) as rows
from seeds
where row_id in (select interaction_id from contaminated)
group by source
order by source
