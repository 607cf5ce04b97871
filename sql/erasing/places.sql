-- Source objects that hold erased records, feedback about them, or quarantined records that name them, with their number and the
-- first lines.
-- needs: decisions, marked_feedback, marked_quarantine, selected
-- makes: rows (source_uri, records, lines)
with places as (
    select source_uri as uri, source_row as row from selected
    union
    select detail ->> '$.uri', cast(detail ->> '$.row' as bigint)
    from decisions
    where stage = 'ingest' and interaction_id in (select interaction_id from selected)
    union
    select source_uri, source_row from marked_feedback where change is not null
    union
    select source_uri, source_row from marked_quarantine where change is not null
)
select uri as source_uri, count(*) as records, list(distinct row order by row)[:20] as lines
from places
where uri is not null
group by uri
order by uri
