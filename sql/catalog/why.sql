-- What became of an interaction, step by step: select * from why('<interaction id or request id>').
create macro why(identifier) as table
with meant as (
    select interaction_id, source_uri, source_row, dt, ts
    from interactions
    where interaction_id = identifier or request_id = identifier
),
steps as (
    select
        interaction_id, 1 as step, 'interactions' as stage, '' as version, 'read' as rule, true as kept,
        printf('%s row %d', source_uri, source_row) as detail, null as kept_id
    from meant
    union all
    select
        decisions.interaction_id,
        case stage when 'ingest' then 0 when 'clean' then 2 when 'curate' then 3 else 4 end,
        stage, version, rule, kept, detail, kept_id
    from decisions
    where interaction_id in (select interaction_id from meant union all select identifier)
    union all
    select interaction_id, 5, 'dataset row', node, split, true, row_id, null
    from dataset_rows
    where interaction_id in (select interaction_id from meant)
)
select interaction_id, stage, version, rule, kept, detail, kept_id
from steps
order by interaction_id, step, version, rule
