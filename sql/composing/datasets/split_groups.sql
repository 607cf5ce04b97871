-- The split of each session, drawn by the hash of its user's name, or of its own where it has no user: no other row, setting or
-- day moves it. Test takes the lowest draws and validation the highest, so that another share of one moves nothing between the
-- two. Traffic so small that no name falls into a split lends it the nearest one; `lent_before` has what earlier versions lent.
-- needs: lent_before, training_conversations
-- parameters: $lend, $seed, $split_by, $test_share, $validation_share
-- makes: temp table split_groups (session_id, drawn, split, lent)
create or replace temp table split_groups as
with sessions as (
    select session_id, coalesce(if($split_by = 'user', any_value(user_hash), null), session_id) as split_group
    from training_conversations
    group by session_id
),
drawn as (
    select
        split_group,
        md5($seed || ':' || split_group) as drawn,
        ('0x' || drawn[1:8])::ubigint / 4294967296.0 as draw
    from (select distinct split_group from sessions)
),
by_hash as (
    select
        *,
        case
            when draw < $test_share then 'test'
            when draw >= 1 - $validation_share then 'validation'
        end as own_split,
        count(*) over () as split_groups
    from drawn
),
held_so_far as (
    select
        by_hash.*,
        case
            when own_split is not null then own_split
            when lent_before.split = 'test' and $test_share > 0 then 'test'
            when lent_before.split = 'validation' and $validation_share > 0 then 'validation'
        end as held
    from by_hash
    left join lent_before using (drawn)
),
ranked as (
    select
        *,
        count(if(held = 'test', 1, null)) over () as tested,
        count(if(held = 'validation', 1, null)) over () as validated,
        row_number() over (partition by held is null order by draw, split_group) as from_below,
        row_number() over (partition by held is null order by draw desc, split_group) as from_above
    from held_so_far
),
decided as (
    select
        *,
        case
            when held is not null then held
            when $lend and $test_share > 0 and tested = 0 and split_groups >= 3 and from_below = 1 then 'test'
            when $lend and $validation_share > 0 and validated = 0 and split_groups >= 3 and from_above = 1 then 'validation'
            else 'train'
        end as split
    from ranked
)
select session_id, drawn, split, split <> 'train' and own_split is null as lent
from sessions
join decided using (split_group)
