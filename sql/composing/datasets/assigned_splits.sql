-- Assigns each conversation to a split by the hash of its split group, so that a session stays whole and keeps its split when
-- new days arrive. With three or more groups, neither held-out split with a share above 0 is empty. Seeds go to train.
-- needs: curated, seeds, training_conversations
-- parameters: $seed, $test_share, $validation_share
-- makes: temp table assigned_splits (row_id, origin, source, session_id, workload, ts, messages, tools, request, text,
--     token_ids, labels, prompt_shape, content_sha256, interaction_ids, split, quality, difficulty)
create or replace temp table assigned_splits as
with drawn as (
    select
        split_group,
        ('0x' || md5($seed || ':' || split_group)[1:8])::ubigint / 4294967296.0 as draw
    from (select distinct split_group from training_conversations)
),
tested as (
    select
        *,
        count(*) over () as split_groups,
        draw < $test_share
        or ($test_share > 0 and count(*) over () >= 3 and row_number() over (order by draw, split_group) = 1) as is_test
    from drawn
),
sides as (
    select
        split_group,
        case
            when is_test then 'test'
            when draw < $test_share + $validation_share and draw >= $test_share then 'validation'
            when $validation_share > 0 and split_groups >= 3
                and row_number() over (partition by is_test order by draw, split_group) = 1 then 'validation'
            else 'train'
        end as split
    from tested
)
select
    rows.interaction_id as row_id, 'interaction' as origin, rows.source, rows.session_id, rows.workload, rows.ts,
    rows.chat as messages, rows.tools, rows.request, rows.text, rows.token_ids, rows.labels, rows.prompt_shape,
    rows.content_sha256, rows.interaction_ids, sides.split, rows.quality, rows.difficulty
from training_conversations as rows
join sides using (split_group)
union all
select
    row_id, 'seed', source, row_id, (select any_value(workload) from curated), null,
    messages, tools, null, text, token_ids, labels, 'seed#' || source, content_sha256, [], 'train', null, null
from seeds
