-- Source objects that hold erased records or feedback about them, with their number and the first lines.
-- needs: decisions, selected
-- makes: rows (source_uri, records, lines)
with places as (
    select source_uri as uri, source_row as row from selected
    union
    select detail ->> '$.uri', cast(detail ->> '$.row' as bigint)
    from decisions
    where stage = 'ingest' and interaction_id in (select interaction_id from selected)
)
select uri as source_uri, count(*) as records, list(distinct row order by row)[:20] as lines
from places
where uri is not null
group by uri
order by uri
