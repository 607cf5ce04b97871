-- The objects by what they turned out to be. One that no format recognised, that holds nothing, or that could not be opened,
-- has no format.
select
    case
        when state = 'failed' then 'cannot be read'
        when format <> '' then format
        when coalesce(rows, 0) = 0 then 'empty'
        else 'not recognised'
    end as format,
    count(*) as objects,
    coalesce(sum(bytes), 0)::bigint as bytes,
    coalesce(sum(rows), 0)::bigint as records,
    min(uri) as first_object
from objects
where state <> 'skipped'
group by all
order by objects desc, format
