-- Objects that could not be opened or read to their end, by the reason.
select problem, count(*) as objects, min(uri) as first_object
from objects
where state = 'failed'
group by problem
order by objects desc, problem
