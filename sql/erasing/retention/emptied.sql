-- The interactions of a day, emptied of what was said: ids, times, counts and the numbers among the parameters stay. Token ids
-- and verifier data stay in rows that have nothing else to train on. Rows that were not cleaned yet keep everything.
-- needs: cleaned_interactions, interactions, numbers_of()
-- makes: rows (*)
with marked as (
    select
        interactions.*,
        emptied is null and cleaned_interactions.interaction_id is not null as goes,
        coalesce(interactions.status in ('tokens', 'prompt_only'), false) as is_all_there_is
    from interactions
    left join cleaned_interactions using (dt, interaction_id, content_sha256)
)
select
    * exclude (goes, is_all_there_is) replace (
        if(goes, null, messages) as messages,
        if(goes, null, tools) as tools,
        if(goes, null, completion) as completion,
        if(goes, null, reasoning) as reasoning,
        if(goes, null, error) as error,
        if(goes and not is_all_there_is, numbers_of(params), params) as params,
        if(goes and not is_all_there_is, null, prompt_token_ids) as prompt_token_ids,
        if(goes and not is_all_there_is, null, completion_token_ids) as completion_token_ids,
        if(
            goes,
            md5(to_json(
                {model: model, weights: served_model_digest, params: params, prompt: prompt_token_ids,
                answer: completion_token_ids, counted: [prompt_tokens, completion_tokens], reasoning: reasoning,
                finish: finish_reason, status: status}
            )::varchar),
            emptied
        ) as emptied
    )
from marked
