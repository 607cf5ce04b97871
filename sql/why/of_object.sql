-- Outcomes of one log object's records, counted by table.
-- needs: decisions_history, feedback, interactions, quarantine
-- parameters: $uri
-- makes: rows (stage, rule, kept, records, first_row)
with outcomes as (
    select 1 as place, 'interactions' as stage, 'read' as rule, true as kept, count(*) as records, min(source_row) as first_row
    from interactions
    where source_uri = $uri
    union all
    select 2, 'feedback', name, true, count(*), min(source_row)
    from feedback
    where source_uri = $uri
    group by name
    union all
    select
        3, 'ingest', rule, false, coalesce(sum(cast(detail ->> '$.records' as bigint)), count(*))::bigint,
        min(cast(detail ->> '$.row' as bigint))
    from decisions_history
    where stage = 'ingest' and (detail ->> '$.uri') = $uri
    group by rule
    union all
    select 4, 'quarantine', error_code, false, count(*), min(source_row)
    from quarantine
    where source_uri = $uri
    group by error_code
)
select stage, rule, kept, records, first_row
from outcomes
where records > 0
order by place, records desc, rule
