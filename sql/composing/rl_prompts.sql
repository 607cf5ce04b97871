-- name: logged_prompts
-- Logged prompts that came with data to verify an answer (RFT lines), with the user of their session.
create or replace temp table logged_prompts as
select
    rows.interaction_id as row_id, 'interaction' as origin, rows.source, rows.session_id, rows.workload, rows.ts, rows.messages,
    rows.tools, cast(raw.params -> '$.item' as varchar) as verifier, [rows.interaction_id] as interaction_ids,
    coalesce(if($split_by = 'user', raw.user_hash, null), rows.session_id) as split_group, rows.language
from cleaned_interactions as rows
join interactions as raw using (interaction_id)
where rows.status = 'prompt_only' and raw.params ->> '$.item' is not null

-- name: all_prompts
-- Prompts of logs and files together. Records for an environment or an agent are told apart by their state, too; tasks contradict
-- each other where they say different answers to one prompt are right.
create or replace temp table together as
with named as (
    select *, sha256(concat_ws(chr(1), messages, coalesce(tools, ''), state)) as content_sha256
    from (
        select * from logged_prompts
        union all by name
        select * from task_prompts
    )
),
compared as (
    select *, count(distinct right_answer) over (partition by content_sha256, verifier ->> '$.kind') > 1 as contradicts from named
)
select *, row_number() over (partition by content_sha256, contradicts order by origin, row_id) as place from compared

-- name: prompt_rows
-- Prompts without contradiction, each once, with the split that the hash of their user, session or text draws, or that
-- sft_dataset lends the user or session to (composing/splits/split_groups).
create or replace temp table prompt_rows as
with once as (
    select * from together where not contradicts and place = 1
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

-- name: left_out_tasks
-- Prompts that stand elsewhere too, and those of tasks that contradict each other, with the first of these.
select
    count(*) filter (not contradicts and place > 1) as repeated,
    count(*) filter (contradicts) as contradictory,
    coalesce(list(row_id order by row_id) filter (contradicts), [])[:3] as examples
from together

-- name: searched_rows
-- Prompts as the rows that resources/curating/decontamination.py searches.
create or replace temp view searched_rows as
select row_id, messages, null::varchar as completion from prompt_rows

-- name: count_contaminated
-- Number of prompts that contain an evaluation item.
select count(*) as rows from prompt_rows where row_id in (select interaction_id from contaminated)

-- name: split_rows
-- Prompts of one split without evaluation items, in shuffled order; of training prompts the first $max_rows.
select *
from prompt_rows
where split = $split and row_id not in (select interaction_id from contaminated)
qualify $split <> 'train' or row_number() over (order by md5($seed || ':row:' || row_id), row_id) <= $max_rows
order by md5($seed || ':row:' || row_id), row_id
