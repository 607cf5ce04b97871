-- Prompts of logs and files together, each once, with the split that the hash of their user, session or text draws, or that
-- sft_dataset lends the user or session to (datasets/split_groups.sql).
-- needs: lent_before, logged_prompts, task_prompts
-- parameters: $seed, $test_share, $validation_share
-- makes: temp table prompt_rows (row_id, origin, source, session_id, workload, ts, messages, tools, verifier, interaction_ids,
--     content_sha256, split, weight, reason, synthetic, language)
create or replace temp table prompt_rows as
with together as (
    select * from logged_prompts
    union all by name
    select * from task_prompts
),
once as (
    select *, sha256(messages || chr(1) || coalesce(tools, '')) as content_sha256
    from together
    qualify row_number() over (partition by content_sha256 order by origin, row_id) = 1
),
drawn as (
    select
        *, md5($seed || ':' || coalesce(split_group, content_sha256)) as drawn,
        ('0x' || drawn[1:8])::ubigint / 4294967296.0 as draw
    from once
),
placed as (
    select
        drawn.*,
        case
            when draw < $test_share then 'test'
            when draw >= 1 - $validation_share then 'validation'
            when lent_before.split = 'test' and $test_share > 0 then 'test'
            when lent_before.split = 'validation' and $validation_share > 0 then 'validation'
            else 'train'
        end as split
    from drawn
    left join lent_before using (drawn)
)
select
    row_id, origin, source, session_id, workload, ts, messages, tools, verifier, interaction_ids, content_sha256,
    split, 1.0::double as weight, if(split = 'train', 'all', 'held_out') as reason, false as synthetic, language
from placed
