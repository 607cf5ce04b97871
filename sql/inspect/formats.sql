-- The objects by what they turned out to be. One that no format recognised, or that could not be opened, has none.
select
    case when state = 'failed' then 'cannot be read' else coalesce(nullif(format, ''), 'not recognised') end as format,
    count(*) as objects,
    coalesce(sum(bytes), 0)::bigint as bytes,
    coalesce(sum(rows), 0)::bigint as records,
    min(uri) as first_object
from objects
where state <> 'skipped'
group by all
order by objects desc, format
