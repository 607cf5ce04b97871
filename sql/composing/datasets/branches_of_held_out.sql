-- Rows that begin with the same turns and answers as a row of a more protected split (test, then validation, then training), or
-- are the beginning of one: branches and copies of a held-out conversation. A beginning in more than eight sessions is a stock
-- phrase ("Hello, how can I help?") and counts only where it is one of the two conversations as a whole.
-- needs: assigned_splits, prefixes
-- makes: temp table branches_of_held_out (row_id, rule, held_id)
create or replace temp table branches_of_held_out as
with placed as (
    select
        prefixes.prefix_hash, prefixes.session_id, assigned_splits.row_id, prefixes.is_answer,
        case assigned_splits.split when 'test' then 0 when 'validation' then 1 else 2 end as place
    from prefixes
    join assigned_splits on assigned_splits.row_id = prefixes.interaction_id
    where assigned_splits.origin = 'interaction'
),
held as (
    select
        prefix_hash, min(place) as place, min(row_id) as held_id, bool_or(is_answer) as whole
    from placed
    where place < 2
    group by prefix_hash
),
suspects as (
    select placed.*, held.held_id, held.whole, placed.place > held.place as is_lower
    from placed
    join held using (prefix_hash)
),
spread as (
    select prefix_hash, count(distinct session_id) as sessions
    from suspects
    group by prefix_hash
),
branches as (
    select row_id, held_id
    from suspects
    join spread using (prefix_hash)
    where is_lower and (sessions <= 8 or is_answer or whole)
    union all
    select lower.row_id, upper.row_id
    from assigned_splits as lower
    join assigned_splits as upper
        on upper.content_sha256 = lower.content_sha256 and upper.split <> lower.split
    where lower.origin = 'interaction' and upper.split <> 'train' and (lower.split = 'train' or upper.split = 'test')
)
select row_id, 'shares_turns_with_held_out' as rule, min(held_id) as held_id
from branches
group by row_id
