-- How each answer of the dataset was served. Token ids hold what was said before personal data was taken out: they are kept
-- only where nothing was taken out of the row.
-- $files: train and validation
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
        and cardinality(coalesce(cleaned.pii, cast(map {} as map(varchar, integer)))) = 0 as whole
    from interactions as raw
    join cleaned_interactions as cleaned using (interaction_id)
)
select
    raw.interaction_id, raw.model, raw.served_model_digest, raw.params, raw.finish_reason,
    case when untouched.whole and raw.status = 'success' then raw.prompt_token_ids end as prompt_token_ids,
    case when untouched.whole and raw.status = 'success' then raw.completion_token_ids end as completion_token_ids
from interactions as raw
join wanted using (interaction_id)
join untouched using (interaction_id)
order by raw.interaction_id
