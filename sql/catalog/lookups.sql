-- name: feedback
-- Feedback with the user of the interaction that it is about. A record that names no workload is in `feedback_records` for each;
-- here it is once where its id is known.
create view feedback as
select feedback_records.*, interactions.user_hash
from feedback_records
left join interactions
    on interactions.workload = feedback_records.workload and interactions.interaction_id = feedback_records.interaction_id
where tie is distinct from 'elsewhere'
    or (feedback_records.source_uri, feedback_records.source_row) not in (
        select (source_uri, source_row) from feedback_records where tie not in ('elsewhere', 'unknown')
    )

-- name: acceptance_by_shape
-- Served acceptance by day, release and prompt shape: of requests whose server reported their drafts (vLLM with
-- --enable-per-request-metrics), by the shape that cleaning gave them.
create view acceptance_by_shape as
select
    interactions.workload, interactions.dt, interactions.release, cleaned_interactions.prompt_shape,
    count(*) as requests,
    sum(interactions.drafts)::bigint as drafts,
    sum(interactions.draft_tokens)::bigint as draft_tokens,
    sum(interactions.accepted_tokens)::bigint as accepted_tokens,
    1 + sum(interactions.accepted_tokens) / sum(interactions.drafts) as tau
from interactions
left join cleaned_interactions using (workload, dt, interaction_id)
where interactions.drafts > 0
group by interactions.workload, interactions.dt, interactions.release, cleaned_interactions.prompt_shape

-- name: named_nodes
-- Nodes that a name means: a node, workload/name (the current version), workload/name@version, or a version; the first digits of
-- a version do. A table or an external file without a version means all its slices or contents. A name that means none is an
-- error, for no rows would be an answer.
create macro named_nodes(artefact) as table
with named as (
    select node
    from nodes
    where node = artefact
        or (
            name = split_part(artefact, '@', 1) and starts_with(version, split_part(artefact, '@', 2))
            and (contains(artefact, '@') or coalesce(is_current, true))
        )
        or (length(artefact) >= 4 and not contains(artefact, '/') and starts_with(version, artefact))
),
alike as (
    select string_agg(distinct name, ', ' order by name) as names
    from nodes
    where ends_with(name, concat('/', artefact))
)
select node from named
union all
select error(concat(
    'nothing in the lake is named ', artefact, ': ', 'write ' || names || ', or ',
    'give workload/name of a current version, workload/name@version or the first digits of a version (`from nodes` lists them)'
))
from alike
where not exists (from named)

-- name: log_lines_in
-- Log lines that an artefact was trained on: select * from log_lines_in('math-tutor/sft_model'), of the current version. Add
-- @version for another. Weights hold rows of the training split only; a dataset of conversations shows all its splits, and
-- of its own rows only. Rows come in no order.
create macro log_lines_in(artefact) as table
with wanted_artefacts as (
    select node, artefacts.kind
    from named_nodes(artefact) as named
    left join artefacts using (node)
),
sources as (
    select wanted_artefacts.node as made, wanted_artefacts.kind, weight_lineage.ancestor as node
    from wanted_artefacts join weight_lineage on weight_lineage.artefact = wanted_artefacts.node
    union
    select node, kind, node from wanted_artefacts
)
select
    sources.made as artefact, dataset_rows.node as dataset, dataset_rows.split, dataset_rows.row_id,
    dataset_rows.interaction_id, interactions.source, interactions.source_uri, interactions.source_row,
    interactions.user_hash, interactions.ts
from dataset_rows
join sources using (node)
left join interactions using (interaction_id)
where dataset_rows.split = 'train' or sources.kind = 'dataset'

-- name: users_in
-- Hashed users whose log lines an artefact was trained on: select * from users_in('math-tutor/sft_model').
create macro users_in(artefact) as table
select
    user_hash, count(distinct interaction_id) as interactions, min(ts) as first_seen, max(ts) as last_seen
from log_lines_in(artefact)
where interaction_id is not null
group by user_hash
order by interactions desc, user_hash

-- name: weights_holding
-- Models and releases trained on a user's or an interaction's text: select * from weights_holding('<user hash or interaction
-- id>').
create macro weights_holding(identifier) as table
with theirs as (
    select interaction_id from interactions where user_hash = identifier or interaction_id = identifier
),
datasets as (
    select node, count(distinct interaction_id) as interactions
    from dataset_rows
    where split = 'train' and (interaction_id in (select interaction_id from theirs) or interaction_id = identifier)
    group by node
)
select artefacts.node as artefact, artefacts.kind, artefacts.is_current, datasets.node as dataset, datasets.interactions
from datasets
join weight_lineage on weight_lineage.ancestor = datasets.node
join artefacts on artefacts.node = weight_lineage.artefact
where artefacts.kind in ('model', 'release')
union all
select
    error(concat('no user and no interaction of the lake is ', identifier, ': give the whole user_hash or interaction_id')),
    null, null, null, null
where not exists (from theirs) and not exists (from dataset_rows where interaction_id = identifier)
order by all

-- name: ancestors
-- Everything that an artefact was made from, nearest first: select * from ancestors('math-tutor/sft_model').
create macro ancestors(identifier) as table
select
    lineage.artefact, lineage.depth, lineage.ancestor, nodes.kind, nodes.name, nodes.version, nodes.is_current
from lineage
join nodes on nodes.node = lineage.ancestor
where lineage.artefact in (select named.node from named_nodes(identifier) as named)
order by all

-- name: descendants
-- Everything that was made from a node, nearest first: select * from descendants('math-tutor/sft_dataset'). Of a table or an
-- external file: select * from descendants('math-tutor/feedback').
create macro descendants(identifier) as table
select
    lineage.ancestor as origin, lineage.depth, lineage.artefact as descendant, nodes.kind, nodes.name, nodes.version,
    nodes.is_current
from lineage
join nodes on nodes.node = lineage.artefact
where lineage.ancestor in (select named.node from named_nodes(identifier) as named)
order by all

-- name: steps_of
-- Every step of the given interactions through the pipeline: select * from steps_of(['<interaction id>', ...]). `current`: the
-- step belongs to the current version of its artefact. Models and releases are listed for training rows only, nearest first:
-- validation and test rows are in no weights.
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

-- name: why
-- Every step of an interaction, found by any of its ids: select * from why('<interaction, request, trace or session id>').
create macro why(identifier) as table
select *
from steps_of((
    select list(interaction_id)
    from (
        select interaction_id
        from interactions
        where identifier in (interaction_id, request_id, alias_id, trace_id, session_id)
        union
        select interaction_id from decisions_history where interaction_id = identifier
    )
))

-- name: relations
-- Tables, views and macros of the catalog, with their comments.
create view relations as
select view_name as relation, 'view' as kind, comment
from duckdb_views()
where not internal and database_name not in ('system', 'temp')
union all
select table_name, 'table', comment
from duckdb_tables()
where not internal and database_name not in ('system', 'temp')
union all
select printf('%s(%s)', function_name, array_to_string(parameters, ', ')), 'macro', comment
from duckdb_functions()
where function_type = 'table_macro' and not internal and database_name not in ('system', 'temp')
order by relation

-- name: relation_columns
-- Columns of the catalog's tables and views, with their comments.
create view relation_columns as
select table_name as relation, column_name, data_type, comment
from duckdb_columns()
where not internal and database_name not in ('system', 'temp')
order by relation, column_index
