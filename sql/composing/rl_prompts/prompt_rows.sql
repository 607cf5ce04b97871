-- Prompts of logs and files together, each once, with the split that the hash of their user, session or text draws.
-- needs: logged_prompts, task_prompts
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
    select *, ('0x' || md5($seed || ':' || coalesce(split_group, content_sha256))[1:8])::ubigint / 4294967296.0 as draw
    from once
)
select
    row_id, origin, source, session_id, workload, ts, messages, tools, verifier, interaction_ids, content_sha256,
    case when draw < $test_share then 'test' when draw >= 1 - $validation_share then 'validation' else 'train' end as split,
    1.0::double as weight, if(draw < $test_share or draw >= 1 - $validation_share, 'held_out', 'all') as reason,
    false as synthetic, language
from drawn
