-- The log objects that a person may mean by a path: the uri itself, else its end.
-- $uri, $absolute
with named as (
    select workload, uri, state, rows, days, format, problem, uri in ($uri, $absolute) as is_exact
    from objects
    where uri in ($uri, $absolute) or ends_with(uri, '/' || ltrim($uri, './'))
)
select * exclude (is_exact)
from named
where is_exact or not exists (from named where is_exact)
order by uri, workload
