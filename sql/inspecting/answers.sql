-- Answers that the n-gram drafter is measured on: the request as one text, the answer, and token ids where the log has both.
-- needs: conversations, messages
-- makes: rows (workload_name, shape, prompt, answer, prompt_token_ids, completion_token_ids)
with conversations_read as (
    select
        interaction_id,
        string_agg(text, chr(10) order by position) filter (where not is_answer) as prompt,
        max(text) filter (where is_answer) as answer
    from messages
    group by interaction_id
)
select
    workload_name, shape, concat_ws(chr(10), tools, prompt) as prompt, answer,
    case when completion_token_ids is not null then prompt_token_ids end as prompt_token_ids,
    case when prompt_token_ids is not null then completion_token_ids end as completion_token_ids
from conversations
join conversations_read using (interaction_id)
order by draw
