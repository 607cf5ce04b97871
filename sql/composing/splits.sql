-- name: sessions_in_two_splits
-- Number of sessions with rows in more than one file of a finished dataset; must be 0. $files: train, validation and test
with assigned_splits as (
    select session_id, filename
    from read_parquet($files, filename = true)
    where origin = 'interaction' and session_id is not null
),
straddling as (
    select session_id
    from assigned_splits
    group by session_id
    having count(distinct filename) > 1
)
select count(*) as sessions
from straddling

-- name: split_groups
-- The split of each session, drawn by the hash of its user's name, or of its own where it has no user: no other row, setting or
-- day moves it. Test takes the lowest draws and validation the highest, so that another share of one moves nothing between the
-- two. Traffic so small that no name falls into a split lends it the nearest one; `lent_before` has what earlier versions lent.
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

-- name: count_split_groups
-- Number of users (or sessions without a user), and of sessions.
select count(distinct drawn) as split_groups, count(*) as sessions from split_groups

-- name: held_out_shares
-- Share of each held-out split in the rows of traffic, and its users (or sessions without a user).
select
    split,
    count(*) / (select count(*) from clustered where origin = 'interaction') as share,
    (select count(distinct drawn) from split_groups as held where held.split = clustered.split) as split_groups
from clustered
where origin = 'interaction' and split <> 'train'
group by split
order by split

-- name: assigned_splits
-- All rows with their split: conversations as their user or session, seeds for training.
create or replace temp table assigned_splits as
select
    rows.interaction_id as row_id, 'interaction' as origin, rows.source, rows.session_id, rows.workload, rows.ts,
    rows.prompt_shape, rows.content_sha256, rows.interaction_ids, split_groups.split, rows.quality, rows.difficulty,
    rows.language, false as synthetic
from training_conversations as rows
join split_groups using (session_id)
union all
select
    row_id, 'seed', source, coalesce(session_id, row_id), (select any_value(workload) from curated), null,
    'seed#' || source, content_sha256, interaction_ids, 'train', null, null, null, synthetic
from seeds

-- name: trained_before
-- Sessions that earlier versions of the dataset trained on. $files: their train.parquet
create or replace temp table trained_before as
select distinct session_id
from read_parquet($files, union_by_name = true)
where origin = 'interaction' and session_id is not null

-- name: stratum_loans
-- Users (or sessions) that a stratum lends to a split in which it has none: of a stratum so large that the split's share is at
-- least one of them, the nearest draw. Only those are lent that no earlier version trained on, so no session changes its split.
-- $strata: columns, each value of which is a stratum
create or replace temp table stratum_loans as
with members as (
    select distinct
        split_groups.drawn, split_groups.split,
        unnest(list_filter([
            struct_pack(by := 'prompt_shape', label := training_conversations.prompt_shape),
            struct_pack(by := 'language', label := training_conversations.language),
            struct_pack(by := 'source', label := training_conversations.source)
        ], lambda each: each.label is not null and list_contains($strata::varchar[], each.by))) as stratum
    from training_conversations
    join split_groups using (session_id)
),
lendable as (
    select drawn
    from split_groups
    left join trained_before using (session_id)
    group by drawn
    having bool_and(split = 'train') and count(trained_before.session_id) = 0
),
strata as (
    select
        stratum,
        count(*) * $test_share >= 1 and not bool_or(split = 'test') as lacks_test,
        count(*) * $validation_share >= 1 and not bool_or(split = 'validation') as lacks_validation
    from members
    group by stratum
),
lent as (
    select min(drawn) filter (where lacks_test) as to_test, max(drawn) filter (where lacks_validation) as to_validation
    from strata
    join members using (stratum)
    semi join lendable using (drawn)
    group by stratum
)
select drawn, min(split) as split
from (
    select to_test as drawn, 'test' as split from lent
    union all
    select to_validation, 'validation' from lent
) as both_splits
where drawn is not null
group by drawn

-- name: lend
-- Moves what strata lend to its split.
update split_groups
set split = stratum_loans.split, lent = true
from stratum_loans
where split_groups.drawn = stratum_loans.drawn

-- name: available
-- Training rows to sample from, by source and cluster.
select source, synthetic, cluster, count(*) as rows
from clustered
where split = 'train'
group by all
order by all

-- name: count_split_sessions
-- Number of sessions in more than one split; must be 0.
select count(*)
from (select session_id from sampled where copies > 0 group by session_id having count(distinct split) > 1)

-- name: lent
-- Users and sessions that are held out only because a split would be empty without them, as hashes.
select distinct split, drawn from split_groups where lent order by split, drawn
