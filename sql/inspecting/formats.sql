-- Objects by format. Objects that no format recognised, that are empty or that could not be read have no format.
-- needs: objects
-- makes: rows (format, objects, bytes, records, first_object)
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
