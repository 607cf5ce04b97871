-- Local log objects of a size.
-- needs: objects
-- parameters: $bytes
-- makes: rows (workload, uri, state, rows, days, format, problem)
select workload, uri, state, rows, days, format, problem
from objects
where bytes = $bytes and starts_with(uri, '/')
order by uri, workload
