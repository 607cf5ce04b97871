-- name: served_answers
-- How each answer of the dataset was served. Token ids contain the text before personal data was replaced, so they are kept
-- only where nothing was replaced. They are exact only if there are as many as the server counted: a log may cut them or
-- prepend the prompt. A request's count of answer tokens covers all its choices. $files: train, validation and test
with wanted as (
    select distinct unnest(interaction_ids) as interaction_id
    from read_parquet($files)
    where origin = 'interaction'
),
untouched as (
    select
        raw.interaction_id,
        raw.messages is not distinct from cleaned.messages
        and raw.tools is not distinct from cleaned.tools
        and raw.completion is not distinct from cleaned.completion
        and raw.reasoning is not distinct from cleaned.reasoning
        and cardinality(coalesce(cleaned.pii, cast(map {} as map(varchar, integer)))) = 0 as whole
    from interactions as raw
    join cleaned_interactions as cleaned using (interaction_id)
),
several as (
    select source, request_id
    from interactions
    where request_id is not null
    group by source, request_id
    having count(*) > 1
),
examined as (
    select
        raw.*,
        raw.status = 'success' and raw.prompt_token_ids is not null and raw.completion_token_ids is not null as has_ids,
        coalesce(len(raw.prompt_token_ids) <> raw.prompt_tokens, false)
        or coalesce(len(raw.completion_token_ids) > raw.completion_tokens, false)
        or coalesce(several.request_id is null and len(raw.completion_token_ids) < raw.completion_tokens, false) as miscounted,
        untouched.whole
    from interactions as raw
    join wanted using (interaction_id)
    join untouched using (interaction_id)
    left join several on several.source = raw.source and several.request_id = raw.request_id
)
select
    interaction_id, model, served_model_digest, params, finish_reason,
    case when has_ids and whole and not miscounted then prompt_token_ids end as prompt_token_ids,
    case when has_ids and whole and not miscounted then completion_token_ids end as completion_token_ids,
    has_ids and whole and miscounted as miscounted
from examined
order by interaction_id
