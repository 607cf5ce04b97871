-- name: lineage_of
-- All lineage edges behind one artefact, nearest first.
with reached as (
    select $node as node, 0 as depth
    union
    select ancestor, depth from lineage where artefact = $node
)
select
    reached.depth + 1 as depth, edges.child, edges.parent, edges.kind, edges.name, edges.version, edges.digest,
    artefacts.op, artefacts.created_at, parents.path
from reached
join lineage_edges as edges on edges.child = reached.node
left join artefacts on artefacts.node = edges.child
left join artefacts as parents on parents.node = edges.parent
order by reached.depth, edges.child, edges.parent

-- name: lineage_above
-- All lineage edges above one node: what was made from it, nearest first.
with reached as (
    select $node as node, 0 as depth
    union
    select artefact, depth from lineage where ancestor = $node
)
select
    reached.depth + 1 as depth, edges.child, edges.parent, made.kind, made.name, made.version, made.digest, made.op,
    made.created_at, made.path
from reached
join lineage_edges as edges on edges.parent = reached.node
left join artefacts as made on made.node = edges.child
order by reached.depth, edges.parent, edges.child

-- name: count_log_lines
-- Counts the interactions, log objects and hashed users behind an artefact. $artefact: name@version
select
    count(distinct interaction_id) as interactions, count(distinct source_uri) as objects, count(distinct user_hash) as users
from log_lines_in($artefact)
where interaction_id is not null

-- name: find_artefact
-- Finds artefacts by name, with or without the workload (the current version), name@version, or the beginning of a version.
select node, name, version, path
from artefacts
where ((name = $name or split_part(name, '/', 2) = $name) and starts_with(version, $version) and ($version <> '' or is_current))
    or ($version = '' and length($name) >= 4 and starts_with(version, $name))
order by node

-- name: described_relation
-- Statistics of a relation's columns: type, smallest and largest value, distinct values (approximate), mean, nulls.
-- placeholders: relation
select
    column_name, column_type, min as least, max as most, approx_unique as distinct_values, avg as mean,
    null_percentage as null_percent, count as row_count
from (summarize {relation})

-- name: described_relations
-- Tables of rows and current datasets, which a report on the data describes.
select relations.relation, relations.comment
from relations
where list_contains($tables, relations.relation)
    or relations.relation in (select datasets.relation from datasets where datasets.is_current)
order by not list_contains($tables, relations.relation), relations.relation

-- name: drop_reasons
-- Why rows were dropped, by workload, stage and rule.
select workload, stage, rule, count(*) as dropped
from decisions
where not kept
group by all
order by workload, dropped desc, stage, rule

-- name: log_lines_of
-- Log lines behind an artefact, in an order that pages can rely on. $artefact: name@version
select *
from log_lines_in($artefact)
order by dataset, split, row_id, interaction_id

-- name: preview
-- The first rows of a relation.
-- placeholders: relation
from {relation} limit $rows

-- name: preview_of_query
-- The first rows of a query that is in our code.
-- placeholders: query
from ({query}) limit $rows

-- name: syntax_tree
-- DuckDB's syntax tree of a query as JSON; {"error": true, ...} where it cannot be written as JSON (pivot).
select json_serialize_sql($text::varchar) as tree

-- name: traffic_by_day
-- Requests of each workload and day, those that failed, tokens, users. Without answers of `millrace chat` ($chats) and pairs of data sets.
select
    workload, dt, count(*) as requests, count(*) filter (where status <> 'success') as failed,
    sum(prompt_tokens) as prompt_tokens, sum(completion_tokens) as answer_tokens, count(distinct user_hash) as users
from interactions
where source is distinct from $chats and source_format is distinct from 'preferences'
group by all
order by all

-- name: users_of
-- Hashed users behind an artefact. $artefact: name@version
select * from users_in($artefact)
