-- name: cleaned_interactions
-- Lines that identify a slice of cleaned rows: id, content, and a hash of the cleaned row.
select
    dt,
    interaction_id || ' ' || coalesce(content_sha256, '') || ' ' || md5(to_json(
        {messages: messages, tools: tools, completion: completion, status: status, session: session_id, shape: prompt_shape,
        text: normalised_sha256, signature: signature}
    )::varchar) as line
from cleaned_interactions
order by dt, line

-- name: interactions
-- Lines that identify a slice of interactions: id, content, the ids that feedback may name, and the user. Rewriting or compacting the
-- table changes nothing.
select
    dt,
    interaction_id || ' ' || coalesce(content_sha256, '') || ' ' || to_json([request_id, alias_id, trace_id, user_hash])::varchar as line
from interactions
order by dt, line

-- name: feedback
-- Lines that identify a slice of feedback: the hash of each record as logged. Later ties do not count, since curation uses
-- every row that an id names.
select
    dt,
    md5(to_json({
    interaction: case when tie is null then interaction_id else given_id end, request: request_id, trace: trace_id,
    session: session_id, name: name, value: value, ts: ts
})::varchar) as line
from feedback
order by dt, line

-- name: judgements
-- Lines that identify a slice of judgements: each score, by row, name, model and prompt.
select
    dt,
    interaction_id || ' ' || coalesce(content_sha256, '') || ' ' || name || ' ' || model || ' ' || prompt_sha256 || ' '
    || coalesce(score::varchar, '') as line
from judgements
order by dt, line

-- name: served
-- Lines that identify a slice of interactions with how each was served: parameters, token ids, model and weights. A row that
-- retention emptied counts as it was.
select
    dt,
    interaction_id || ' ' || coalesce(content_sha256, '') || ' ' || coalesce(emptied, md5(to_json(
        {model: model, weights: served_model_digest, params: params, prompt: prompt_token_ids, answer: completion_token_ids,
        counted: [prompt_tokens, completion_tokens], reasoning: reasoning, finish: finish_reason, status: status}
    )::varchar)) as line
from interactions
order by dt, line
