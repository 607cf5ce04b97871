-- name: artefacts
-- Every finished dataset, model and release, read from its manifest.json.
create table artefacts as
select
    manifest ->> '$.kind' as kind,
    split_part(manifest ->> '$.name', '/', 1) as workload,
    manifest ->> '$.name' as name,
    manifest ->> '$.version' as version,
    coalesce(pointers.version is not null, false) as is_current,
    cast(manifest ->> '$.created_at' as timestamptz) as created_at,
    manifest ->> '$.op' as op, manifest ->> '$.digest' as digest, manifests.path,
    cast(list_sum(cast(manifest -> '$.files[*].bytes' as bigint[])) as bigint) as bytes,
    manifest -> '$.metrics' as metrics,
    manifest -> '$.config' as config,
    manifest ->> '$.recipe_digest' as recipe_digest,
    manifest ->> '$.code.revision' as code_revision,
    cast(manifest ->> '$.code.dirty' as boolean) as code_dirty,
    manifest -> '$.environment' as environment,
    printf('%s:%s@%s', manifest ->> '$.kind', manifest ->> '$.name', manifest ->> '$.version') as node
from manifests
left join pointers
    on pointers.home = regexp_replace(manifests.path, '/[^/]+$', '') and pointers.version = manifest ->> '$.version'
order by kind, name, created_at

-- name: decisions
-- Decisions in force: of ingest and cleaning, and of the current version of curated_interactions and sft_dataset.
-- decisions_history has earlier versions too.
create view decisions as
select *
from decisions_history
where stage in ('ingest', 'clean')
    or exists (
        from artefacts
        where artefacts.is_current
            and artefacts.kind = 'dataset'
            and artefacts.version = decisions_history.version
            and artefacts.workload = decisions_history.workload
            and artefacts.name = decisions_history.workload || '/' || case decisions_history.stage
                when 'curate' then 'curated_interactions'
                when 'dataset' then 'sft_dataset'
            end
    )

-- name: models
-- Every version of every model and drafter.
create view models as
select workload, name, version, is_current, created_at, op, bytes, digest, path, metrics, config, node
from artefacts
where kind = 'model'

-- name: lineage_edges
-- Edges from each artefact (child) to what it was made from (parent): artefacts, table slices, external files.
create table lineage_edges as
with listed as (
    select
        printf('%s:%s@%s', manifest ->> '$.kind', manifest ->> '$.name', manifest ->> '$.version') as child,
        split_part(manifest ->> '$.name', '/', 1) as workload,
        unnest(cast(manifest -> '$.inputs' as json[])) as input
    from manifests
),
named as (
    select
        child, input ->> '$.kind' as kind, input ->> '$.digest' as digest, case
            when input ->> '$.kind' = 'table' and not contains(input ->> '$.name', '/')
                then workload || '/' || (input ->> '$.name')
            else input ->> '$.name'
        end as name,
        coalesce(nullif(input ->> '$.version', ''), (input ->> '$.digest')[1:12]) as version
    from listed
)
select child, printf('%s:%s@%s', kind, name, version) as parent, kind, name, version, digest
from named
order by child, parent

-- name: lineage_nodes
-- All nodes of the lineage graph: artefacts, table slices and external files.
create view lineage_nodes as
select node, kind, name, version, digest from artefacts
union
select parent, kind, name, version, digest from lineage_edges where parent not in (select node from artefacts)

-- name: lineage
-- All ancestors of each artefact with their depth; 1 is a direct parent. Digests bind parents, so there are no cycles.
create view lineage as
with recursive paths(artefact, ancestor, depth) as (
    select child, parent, 1 from lineage_edges
    union
    select paths.artefact, lineage_edges.parent, paths.depth + 1
    from paths
    join lineage_edges on lineage_edges.child = paths.ancestor
    where paths.depth < 100
)
select artefact, ancestor, min(depth) as depth from paths group by artefact, ancestor

-- name: weight_lineage
-- Ancestors whose content may be in an artefact. Of a release, those of its models: what its evaluation read, such as the champion
-- that it was compared with, is an ancestor too, but not in its weights. Of a dataset of conversations, not the dataset that its
-- splits follow: it has its own rows itself.
create view weight_lineage as
with recursive conversations as (
    select node from artefacts where op = 'build_sft_dataset'
),
edges as (
    select child, parent
    from lineage_edges
    where (not starts_with(child, 'release:') or kind = 'model')
        and not (child in (select node from conversations) and parent in (select node from conversations))
),
paths(artefact, ancestor, depth) as (
    select child, parent, 1 from edges
    union
    select paths.artefact, edges.parent, paths.depth + 1
    from paths
    join edges on edges.child = paths.ancestor
    where paths.depth < 100
)
select artefact, ancestor, min(depth) as depth from paths group by artefact, ancestor

-- name: nodes
-- Everything in the lineage: versions of datasets, models and releases, slices of tables, external files.
create view nodes as
select
    found.node, found.kind, if(found.kind = 'external', null, split_part(found.name, '/', 1)) as workload,
    found.name, found.version, found.digest, artefacts.is_current, artefacts.created_at, artefacts.path
from lineage_nodes as found
left join artefacts using (node)

-- name: edges
-- What was made from what: child was made from parent.
create view edges as
select child, parent, kind as parent_kind, name as parent_name, version as parent_version
from lineage_edges

-- name: datasets
-- Every version of every dataset, and what its rows are called in SQL. A dataset of several kinds of files has a row for each.
create table datasets as
select
    artefacts.workload, artefacts.name, artefacts.version, artefacts.is_current,
    listed.relation, listed.versions_relation, listed.row_count,
    artefacts.bytes, artefacts.created_at, artefacts.digest, artefacts.path, artefacts.node
from artefacts
left join listed_datasets as listed using (path)
where artefacts.kind = 'dataset'
order by artefacts.name, artefacts.created_at, artefacts.version, listed.relation

-- name: metrics
-- Numbers of every artefact, one per row: of its manifest (step null), and of each step in its metrics.jsonl. Nested names are
-- joined by slashes; true and false are 1 and 0.
create view metrics as
with stated as (
    select node, null::bigint as step, entry.fullkey, entry.type, entry.atom
    from artefacts, json_tree(artefacts.metrics) as entry
),
logged as (
    select artefacts.node, cast(lines.line ->> '$.step' as bigint) as step, entry.fullkey, entry.type, entry.atom
    from metrics_lines as lines
    join artefacts using (path), json_tree(lines.line) as entry
    where entry.fullkey <> '$.step'
),
numbers as (
    from stated
    union all
    from logged
)
select
    artefacts.node, artefacts.kind, artefacts.workload, artefacts.name, artefacts.version, artefacts.is_current,
    numbers.step, metric_name(numbers.fullkey) as metric,
    case numbers.type when 'BOOLEAN' then cast(numbers.atom = 'true' as double) else cast(numbers.atom as double) end as value
from numbers
join artefacts using (node)
where numbers.type in ('DOUBLE', 'UBIGINT', 'BIGINT', 'BOOLEAN')

-- name: metric_name
-- A metric's name from its path in a JSON document: metric_name('$.records.dropped."too.short"[0]') is
-- records/dropped/too.short/0.
create macro metric_name(json_path) as
    regexp_replace(
        regexp_replace(json_path[2:], '\.("([^"]*)"|([^.\[]+))', '/\2\3', 'g'), '\[(\d+)\]', '/\1', 'g'
    )[2:]

-- name: dataset_rows
-- Rows of every version of every conversation dataset, one row per interaction that a dataset row trains on.
-- placeholders: files
create view dataset_rows as
with read_rows as (
    select
        row_id, origin, session_id, interaction_ids,
        parse_path(filename) as parts
    from read_parquet([{files}], hive_partitioning = false, union_by_name = true, filename = true)
)
select
    printf('dataset:%s/%s@%s', parts[-4], parts[-3], parts[-2]) as node,
    regexp_extract(parts[-1], '^(?:unpaired_)?(.+)\.parquet$', 1) as split,
    row_id, origin, session_id,
    unnest(case when len(interaction_ids) > 0 then interaction_ids else [null] end) as interaction_id
from read_rows

-- name: metrics_lines
-- Lines of every version's metrics.jsonl, one JSON object for each logged step. Lines that are not JSON are left out.
-- placeholders: files
create view metrics_lines as
select regexp_extract(filename, '([^/]+/[^/]+/[^/]+/[^/]+)/[^/]+$', 1) as path, json as line
from read_ndjson_objects([{files}], filename = true, ignore_errors = true)

-- name: manifests
-- Manifests that parse as JSON. A temporary view for building the catalog.
create temp table manifests as
select path, cast(manifest as json) as manifest
from manifest_texts
where json_valid(manifest) and json_type(manifest) = 'OBJECT'

-- name: view_files
-- Parquet files that the catalog's views read: the only files that a query may open.
create table view_files as
select relation, path from listed_files order by relation, path

-- name: table
-- View of a Delta table's newest version, over the files listed when the catalog was built. A copied lake sets the variable
-- `lake`. Views take no bound parameters: sql_literal quotes the values.
-- placeholders: columns, files, types, view
create or replace view {view} as
select {columns}
from read_parquet([{files}], hive_partitioning = true, hive_types = {{{types}}}, union_by_name = true)

-- name: empty
-- View of a table that has no commit yet: the columns, no rows.
-- placeholders: columns, view
create view {view} as
select {columns} where false

-- name: dataset
-- View of a dataset's current version. `split` is the file that a row is in.
-- placeholders: files, version, view
create view {view} as
select
    columns(lambda name: name not in ('filename', 'split')),
    regexp_extract(filename, '/(?:unpaired_)?([^/]+)\.parquet$', 1) as split,
    {version} as version
from read_parquet([{files}], hive_partitioning = false, union_by_name = true, filename = true)

-- name: comment
-- Sets the comment of a relation, macro or column. Comments take no bound parameters: sql_literal quotes the values.
-- placeholders: kind, name, text
comment on {kind} {name} is {text}

-- name: dataset_rows_empty
-- `dataset_rows` for a lake without datasets: the columns, no rows.
create view dataset_rows as
select
    ''::varchar as node, ''::varchar as split, ''::varchar as row_id, ''::varchar as origin, ''::varchar as session_id,
    ''::varchar as interaction_id
where false

-- name: dataset_versions
-- View of all versions of a dataset. `split` is the file that a row is in. A condition on version opens that version's files only.
-- placeholders: files, view
create view {view} as
select
    * exclude (filename),
    regexp_extract(filename, '/(?:unpaired_)?([^/]+)\.parquet$', 1) as split,
    regexp_extract(filename, '([^/]+)/[^/]+$', 1) as version
from read_parquet([{files}], hive_partitioning = false, union_by_name = true, filename = true)

-- name: sampled_answers
-- Answers that models gave while they were trained, of all versions.
-- placeholders: files
create view sampled_answers as
select
    printf('model:%s/%s@%s', parse_path(filename)[-4], parse_path(filename)[-3], parse_path(filename)[-2]) as node,
    * exclude (filename)
from read_parquet([{files}], hive_partitioning = false, filename = true)

-- name: sampled_answers_empty
-- `sampled_answers` for a lake in which no model answered: the columns, no rows.
create view sampled_answers as
select
    ''::varchar as node, ''::varchar as row_id, []::varchar[] as interaction_ids, 0::bigint as step, 0::bigint as answer,
    0::double as grade, map()::map(varchar, double) as parts, ''::varchar as problem, ''::varchar as side,
    0::bigint as tokens, true as ended
where false

-- name: rollouts
-- Attempts at prompts in reinforcement fine-tuning, of all versions.
-- placeholders: files
create view rollouts as
select
    printf('model:%s/%s@%s', parse_path(filename)[-4], parse_path(filename)[-3], parse_path(filename)[-2]) as node,
    * exclude (filename)
from read_parquet([{files}], hive_partitioning = false, union_by_name = true, filename = true)

-- name: rollouts_empty
-- `rollouts` for a lake without reinforcement fine-tuning: the columns, no rows.
create view rollouts as
select
    ''::varchar as node, ''::varchar as row_id, []::varchar[] as interaction_ids, 0::bigint as step, 0::bigint as answer,
    true as last, 0::bigint as version, 0::double as grade, map()::map(varchar, double) as parts, ''::varchar as problem,
    0::bigint as tokens, true as ended, true as learnt, 0::double as gap, ''::varchar as text
where false

-- name: metrics_lines_empty
-- `metrics_lines` for a lake without metrics.jsonl: the columns, no rows.
create view metrics_lines as
select ''::varchar as path, '{}'::json as line where false

-- name: without_comment
-- Catalog objects without a comment: tables, views and macros (column_name null), and columns.
select 'view' as kind, view_name as relation, null as column_name
from duckdb_views()
where not internal and comment is null
union all
select 'table', table_name, null
from duckdb_tables()
where not internal and comment is null
union all
select 'macro table', function_name, null
from duckdb_functions()
where function_type = 'table_macro' and not internal and comment is null
union all
select 'column', table_name, column_name
from duckdb_columns()
where not internal and comment is null
