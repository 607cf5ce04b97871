-- Lines that identify a slice of interactions with how each was served: parameters, token ids, model and weights. A row that
-- retention emptied counts as it was.
-- needs: interactions
-- makes: rows (dt, line)
select
    dt,
    interaction_id || ' ' || coalesce(content_sha256, '') || ' ' || coalesce(emptied, md5(to_json(
        {model: model, weights: served_model_digest, params: params, prompt: prompt_token_ids, answer: completion_token_ids,
        counted: [prompt_tokens, completion_tokens], reasoning: reasoning, finish: finish_reason, status: status}
    )::varchar)) as line
from interactions
order by dt, line
