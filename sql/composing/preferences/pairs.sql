-- Pairs of a chosen and a rejected answer to one prompt, one for each rejected answer, by the first rule that applies. rated:
-- the prompt's best answer by feedback is better by $min_difference. regenerated: the session went on from another answer. edited:
-- the session went on from a text that nobody logged, other than the answer or a part of it.
-- needs: answered, repeated_answers
-- parameters: $min_difference
-- makes: temp table pairs (rejected_id, chosen_id, edited, reason)
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
