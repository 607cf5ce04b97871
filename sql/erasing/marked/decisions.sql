-- The table decisions, with what an erasure does to each row. Decisions of ingest on erased records, also on their copies, keep
-- only the record's place, as an ingest after the erasure would write them, so the counts of records still add up. Later
-- decisions on them are erased. Decisions on other rows no longer name an erased one.
-- needs: decisions, derived, erased_place(), selected
-- makes: temp view marked_decisions (workload, stage, version, dt, interaction_id, rule, kept, detail, kept_id, change)
create or replace temp view marked_decisions as
with known as (
    select
        *,
        coalesce(interaction_id in (select interaction_id from selected), false)
        or stage <> 'ingest' and coalesce(interaction_id in (select interaction_id from derived), false) as is_theirs,
        coalesce(kept_id in (select interaction_id from selected), false) as names_theirs
    from decisions
),
noted as (
    select workload, dt, detail ->> '$.uri' as uri, detail ->> '$.row' as row, count(*) as decisions
    from decisions
    where stage = 'ingest' and rule = 'erased'
    group by all
),
places as (
    select
        workload, dt, source_uri as uri, source_row as row,
        row_number() over (partition by workload, dt, source_uri, source_row) as number
    from selected
),
-- a second try after a kill adds no second decision
added as (
    select places.workload, places.dt, places.uri, places.row
    from places
    left join noted
        on noted.workload = places.workload and noted.dt = places.dt and noted.uri = places.uri
        and noted.row = cast(places.row as varchar)
    where places.number > coalesce(noted.decisions, 0)
)
select
    workload, stage, version, dt, if(is_theirs, null, interaction_id) as interaction_id,
    if(is_theirs, 'erased', rule) as rule, kept,
    if(is_theirs and stage = 'ingest', erased_place(detail ->> '$.uri', cast(detail ->> '$.row' as bigint)), detail) as detail,
    if(is_theirs or names_theirs, null, kept_id) as kept_id,
    case when is_theirs and stage <> 'ingest' then 'erased' when is_theirs or names_theirs then 'changed' end as change
from known
union all
select
    workload, 'ingest', null, dt, null, 'erased', false, erased_place(uri, row),
    null, 'added'
from added
