-- Objects that could not be read to their end, by reason.
-- needs: objects
-- makes: rows (problem, objects, first_object)
select problem, count(*) as objects, min(uri) as first_object
from objects
where state = 'failed'
group by problem
order by objects desc, problem
