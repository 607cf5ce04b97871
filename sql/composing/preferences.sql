-- name: answered
-- Cleaned answers with their feedback; without rows that curation dropped as contaminated or of low quality.
create or replace temp table answered as
select
    rows.interaction_id, rows.session_id, rows.workload, rows.source, rows.ts, rows.messages, rows.tools, rows.request,
    rows.completion,
    rows.language, prompts.prompt, prompts.answer, row_feedback.value
from cleaned_interactions as rows
join prompts using (interaction_id)
left join row_feedback using (interaction_id)
where interaction_id not in (
    select interaction_id
    from decisions
    where stage = 'curate' and version = $curated and rule in ('contaminated', 'low_quality')
)

-- name: repeated_answers
-- Answers as later requests of a session repeat them: what the conversation went on from. `said` identifies the text.
create or replace temp table repeated_answers as
with histories as (
    -- no answer, but not the literal null, for which the macro cannot be bound
    select session_id, tools, messages, conversation_with_identities(messages, nullif(completion, completion)) as conversation
    from cleaned_interactions
    where status = 'ok'
),
places as (
    select *, unnest(range(2, len(conversation) + 1)) as place
    from histories
)
select
    session_id,
    md5(
        array_to_string(list_transform(conversation[1:place - 1], lambda message: message.identity), ' ') || chr(1)
        || coalesce(tools, '')
    ) as prompt,
    conversation[place].identity as said,
    any_value(cast(messages as json) -> (place - 1)) as message,
    any_value(conversation[place].text) as text
from places
where conversation[place].role = 'assistant'
group by all

-- name: pairs
-- Pairs of a chosen and a rejected answer to one prompt, one for each rejected answer, by the first rule that applies. rated:
-- the prompt's best answer by feedback is better by $min_difference. regenerated: the session went on from another answer. edited:
-- the session went on from a text that nobody logged, other than the answer or a part of it.
create or replace temp table pairs as
with best as (
    select prompt, arg_max(answered, (coalesce(value, 0), ts, interaction_id)) as chosen
    from answered
    group by prompt
),
rated as (
    select answered.interaction_id as rejected_id, chosen.interaction_id as chosen_id, null::json as edited, 'rated' as reason
    from answered
    join best using (prompt)
    where chosen.answer <> answered.answer and answered.value is not null
        and coalesce(chosen.value, 0) - answered.value >= $min_difference
        and (chosen.value is not null or answered.value < 0)
),
continued as (
    select repeated_answers.*, accepted.interaction_id as accepted_id, accepted.value as accepted_value
    from repeated_answers
    left join (
        select prompt, answer, arg_max(interaction_id, (ts, interaction_id)) as interaction_id, max(value) as value
        from answered
        group by prompt, answer
    ) as accepted on accepted.prompt = repeated_answers.prompt and accepted.answer = repeated_answers.said
),
left_behind as (
    select
        answered.interaction_id as rejected_id, continued.accepted_id as chosen_id, continued.message,
        continued.text, answered.completion, answered.value, continued.accepted_value, answered.ts
    from answered
    join continued using (session_id, prompt)
    where answered.answer <> continued.said
        and answered.interaction_id not in (
            select other.interaction_id
            from answered as other
            join repeated_answers as repeat
                on repeat.session_id = other.session_id and repeat.prompt = other.prompt and repeat.said = other.answer
        )
),
regenerated as (
    select rejected_id, chosen_id, null::json, 'regenerated'
    from left_behind
    where chosen_id is not null and coalesce(value, 0) <= coalesce(accepted_value, 0)
),
edited as (
    select rejected_id, null, message, 'edited'
    from left_behind
    where chosen_id is null and coalesce(value, 0) <= 0 and trim(coalesce(text, '')) <> ''
        and not contains(message::varchar, '"tool_calls"') and not contains(completion, '"tool_calls"')
        and not contains(coalesce(completion ->> '$.content', ''), text)
        and not contains(text, coalesce(nullif(trim(completion ->> '$.content'), ''), chr(1)))
),
found as (
    select 1 as choice, * from rated
    union all
    select 2, * from regenerated
    union all
    select 3, * from edited
)
select rejected_id, chosen_id, edited, reason
from found
qualify row_number() over (partition by rejected_id order by choice, chosen_id) = 1

-- name: sessions
-- Sessions of the answers with their user, as the splits need them.
create or replace temp table training_conversations as
select answered.session_id, arg_min(interactions.user_hash, (interactions.ts, interaction_id)) filter (
    where interactions.user_hash is not null) as user_hash
from answered
join interactions using (interaction_id)
group by answered.session_id

-- name: rows
-- Preference rows with their split: the most protected one of both answers' sessions.
create or replace temp table preference_rows as
with rated as (
    select
        pairs.*, rejected.session_id, rejected.source, rejected.workload, rejected.ts, rejected.messages as prompt, rejected.tools,
        rejected.request,
        rejected.language, rejected.value as rejected_feedback, chosen.value as chosen_feedback,
        coalesce(pairs.edited, cast(chosen.completion as json)) as better, cast(rejected.completion as json) as worse,
        least(
            case of_rejected.split when 'test' then 0 when 'validation' then 1 else 2 end,
            case of_chosen.split when 'test' then 0 when 'validation' then 1 else 2 end
        ) as place
    from pairs
    join answered as rejected on rejected.interaction_id = pairs.rejected_id
    left join answered as chosen on chosen.interaction_id = pairs.chosen_id
    join split_groups as of_rejected on of_rejected.session_id = rejected.session_id
    left join split_groups as of_chosen on of_chosen.session_id = chosen.session_id
),
written as (
    select
        *,
        json_array(json_merge_patch(better, json_object('role', 'assistant')))::varchar as chosen,
        json_array(json_merge_patch(worse, json_object('role', 'assistant')))::varchar as rejected
    from rated
)
select
    'pair:' || left(md5(coalesce(chosen_id, chosen) || ' ' || rejected_id), 24) as row_id, 'interaction' as origin, source,
    session_id, workload, ts, prompt, tools, request, chosen, rejected, chosen_id, rejected_id,
    list_filter([chosen_id, rejected_id], lambda name: name is not null) as interaction_ids,
    sha256(prompt || chr(1) || chosen || chr(1) || rejected) as content_sha256,
    chosen_feedback, rejected_feedback, ['test', 'validation', 'train'][place + 1] as split, 1.0::double as weight, reason,
    false as synthetic, language, 0.8::double as confidence, null::double as margin
from written

-- name: teacher_rows
-- Preference rows of a teacher: a kept and a rejected answer. They are made from training rows only.
create or replace temp table teacher_rows as
select
    'pair:' || left(md5(chosen || ' ' || rejected || row_id), 24) as row_id, 'teacher' as origin, source, session_id,
    (select any_value(workload) from preference_rows) as workload, null::timestamptz as ts, prompt, tools, null::varchar as request,
    chosen, rejected,
    null::varchar as chosen_id, null::varchar as rejected_id, interaction_ids,
    sha256(prompt || chr(1) || chosen || chr(1) || rejected) as content_sha256, chosen_score as chosen_feedback,
    rejected_score as rejected_feedback, 'train' as split, 1.0::double as weight, 'teacher' as reason, true as synthetic,
    null::varchar as language, 0.9::double as confidence, null::double as margin
from teacher_pairs

-- name: split_rows
-- Rows of one split in shuffled order; of training rows the first $max_rows.
with together as (
    select * from preference_rows
    union all by name
    select * from teacher_rows
)
select *
from together
where split = $split
qualify $split <> 'train' or row_number() over (order by md5($seed || ':row:' || row_id), row_id) <= $max_rows
order by md5($seed || ':row:' || row_id), row_id

-- name: unpaired_rows
-- Answers with a verdict of their own.
select
    row_id, origin, source, session_id, workload, ts, language, prompt, tools, request, chosen as answer, false as desirable,
    0.0::double as value, interaction_ids, reason, split, weight, confidence, content_sha256, synthetic
from preference_rows
where false
