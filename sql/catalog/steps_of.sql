-- Every step of the given interactions through the pipeline: select * from steps_of(['<interaction id>', ...]). `current`: the
-- step belongs to the current version of its artefact. Models and releases are listed for training rows only, nearest first:
-- validation and test rows are in no weights.
-- needs: artefacts, cleaned_interactions, dataset_rows, decisions_history, interactions, judgements, weight_lineage
-- makes: macro steps_of(ids) as rows (interaction_id, step, stage, name, version, rule, kept, detail, kept_id, current)
create macro steps_of(ids) as table
with subjects as (
    select interaction_id, session_id, source_uri, source_row, source, source_format, model, ts
    from interactions
    where list_contains(ids, interaction_id)
),
decided as (
    select * from decisions_history where list_contains(ids, interaction_id)
),
facts as (
    select
        interaction_id, session_id,
        concat_ws(
            '; ',
            case when cardinality(pii) > 0 then 'personal data replaced: ' || array_to_string(
                list_transform(map_entries(pii), lambda entry: printf('%s %d', entry.key, entry.value)), ', '
            ) end,
            'language ' || language,
            case when feedback is not null then printf('feedback %g', feedback) end
        ) as words
    from cleaned_interactions
    where list_contains(ids, interaction_id)
),
scores as (
    select
        interaction_id, name, model, arg_max(score, ts) as score
    from judgements
    where list_contains(ids, interaction_id) and score is not null
    group by interaction_id, name, model
),
placed as (
    select distinct node, split, row_id, interaction_id from dataset_rows where list_contains(ids, interaction_id)
),
repeating as (
    select facts.interaction_id, dataset_rows.node, dataset_rows.split, count(distinct dataset_rows.row_id) as later_rows
    from facts
    join subjects using (interaction_id)
    join dataset_rows on dataset_rows.session_id = facts.session_id and dataset_rows.origin = 'interaction'
    join interactions as later on later.interaction_id = dataset_rows.row_id and later.ts > subjects.ts
    where not exists (
        from placed where placed.interaction_id = facts.interaction_id and placed.node = dataset_rows.node
    )
    group by all
),
holding as (
    select
        placed.interaction_id, artefacts.kind, artefacts.node, artefacts.name, artefacts.version, artefacts.is_current,
        min(weight_lineage.depth) as depth
    from placed
    join weight_lineage on weight_lineage.ancestor = placed.node
    join artefacts on artefacts.node = weight_lineage.artefact
    where placed.split = 'train' and artefacts.kind in ('model', 'release')
    group by all
),
steps as (
    select
        interaction_id, 0 as step, 'ingest' as stage, null as name, null as version, rule, kept,
        case
            when rule in ('repeated_record', 'repeated_id') then printf(
                '%s:%s gave way to %s:%s, %s', detail ->> '$.uri', detail ->> '$.row', detail ->> '$.kept_uri',
                detail ->> '$.kept_row',
                case when (detail ->> '$.same_content') = 'true' then 'the same content' else 'other content under the same id' end
            )
            else printf('%s:%s', detail ->> '$.uri', detail ->> '$.row')
        end as detail,
        kept_id, true as current, 0 as depth
    from decided
    where stage = 'ingest'
    union all
    select
        interaction_id, 1, 'interactions', null, null, 'read', true,
        printf('%s:%d', source_uri, source_row), null, true, 0
    from subjects
    union all
    select interaction_id, 2, 'clean', null, null, rule, kept, concat_ws('; ', detail, nullif(words, '')), kept_id, true, 0
    from decided
    left join facts using (interaction_id)
    where stage = 'clean'
    union all
    select interaction_id, 3, 'judge', name, model, 'scored', true, printf('%g of 10', score), null, true, 0
    from scores
    union all
    select interaction_id, 4, 'curate', artefacts.name, decided.version, rule, kept, detail, kept_id, coalesce(is_current, false),
        0
    from decided
    left join artefacts
        on artefacts.version = decided.version and artefacts.name = decided.workload || '/curated_interactions'
    where stage = 'curate'
    union all
    select interaction_id, 5, stage, artefacts.name, decided.version, rule, kept, detail, kept_id, coalesce(is_current, false),
        0
    from decided
    left join artefacts on artefacts.version = decided.version and artefacts.kind = 'dataset'
    where stage not in ('ingest', 'clean', 'curate')
    union all
    select
        placed.interaction_id, 6, 'dataset row', artefacts.name, artefacts.version, split, true, row_id, null,
        coalesce(is_current, false), 0
    from placed
    left join artefacts using (node)
    union all
    select
        repeating.interaction_id, 7, 'context', artefacts.name, artefacts.version, split, true,
        printf('%d later row%s of its session', later_rows, case when later_rows > 1 then 's' else '' end), null,
        coalesce(is_current, false), 0
    from repeating
    left join artefacts using (node)
    union all
    select
        interaction_id, case kind when 'model' then 8 else 9 end, kind, name, version, 'holds it', true, node, null,
        coalesce(is_current, false), depth
    from holding
)
select interaction_id, step, stage, name, version, rule, kept, detail, kept_id, current
from steps
order by interaction_id, step, depth, name, version, rule, detail
