-- name: learnt_and_held
-- Rows of training files that are held out in another file or the same: by the interactions that they are made from, or by
-- content. $learnt: train files; $held: validation and test files of the same and other datasets.
with learnt as (
    select
        filename, row_id,
        unnest(list_distinct(list_concat(interaction_ids, [row_id, 'content ' || content_sha256]))) as mark
    from read_parquet($learnt, union_by_name = true, filename = true)
),
held as (
    select distinct
        filename, unnest(list_distinct(list_concat(interaction_ids, [row_id, 'content ' || content_sha256]))) as mark
    from read_parquet($held, union_by_name = true, filename = true)
)
select
    learnt.filename as learnt, held.filename as held, count(distinct learnt.row_id)::bigint as rows, min(learnt.row_id) as example
from learnt
join held using (mark)
group by all
order by all
