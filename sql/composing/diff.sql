-- name: row_changes
-- Rows that two versions of a dataset do not have alike. reason: of a row in the new version, why it is there; of a removed row,
-- the new version's decision on it, else `no longer curated`.
create or replace temp table row_changes as
with decided as (
    select interaction_id as row_id, any_value(rule) as rule
    from decisions
    where stage = 'dataset' and version = $version
    group by interaction_id
),
compared as (
    select
        coalesce(new_rows.row_id, old_rows.row_id) as row_id,
        old_rows.split as from_split, new_rows.split as to_split,
        coalesce(new_rows.source, old_rows.source) as source,
        case
            when old_rows.row_id is null then 'added'
            when new_rows.row_id is null then 'removed'
            when old_rows.split <> new_rows.split then 'moved'
            when old_rows.content is distinct from new_rows.content then 'changed'
            when old_rows.copies <> new_rows.copies then 'repeated'
        end as change,
        new_rows.reason
    from old_rows
    full join new_rows using (row_id)
)
select
    compared.row_id, change, from_split, to_split, source,
    if(change = 'removed', coalesce(decided.rule, 'no longer curated'), reason) as reason
from compared
left join decided using (row_id)
where change is not null

-- name: changes
-- Numbers of changed rows, by change, splits, source and reason.
with counted as (
    select change, from_split, to_split, source, reason, count(*)::bigint as rows
    from row_changes
    group by all
)
select change, from_split, to_split, source, reason, rows
from counted
order by list_position(['added', 'removed', 'moved', 'changed', 'repeated'], change), rows desc, from_split, to_split, source, reason

-- name: each_row
-- Every changed row.
select row_id, change, from_split, to_split, source, reason
from row_changes
order by list_position(['added', 'removed', 'moved', 'changed', 'repeated'], change), row_id

-- name: version_rows
-- Rows of one version of a dataset, each once with its number of copies, from its split files. Rows of versions before `reason`
-- have none.
-- placeholders: content, files, reason, view
create or replace temp table {view} as
select
    row_id, regexp_extract(filename, '([^/]+)\.parquet$', 1) as split, any_value(source) as source,
    {reason} as reason, any_value({content}) as content, count(*) as copies
from read_parquet([{files}], union_by_name = true, filename = true)
group by row_id, filename
