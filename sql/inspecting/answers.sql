-- What the drafter is tried on: a request as one text, its answer, and their token ids where the log has both.
with told as (
    select
        interaction_id,
        string_agg(said, chr(10) order by position) filter (where not is_answer) as prompt,
        max(said) filter (where is_answer) as answer
    from messages
    group by interaction_id
)
select
    workload_name, shape, concat_ws(chr(10), tools, prompt) as prompt, answer,
    case when completion_token_ids is not null then prompt_token_ids end as prompt_token_ids,
    case when prompt_token_ids is not null then completion_token_ids end as completion_token_ids
from conversations
join told using (interaction_id)
order by draw
