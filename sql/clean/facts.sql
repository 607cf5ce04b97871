-- The cleaned rows: one for each interaction of the days at hand, with its verdict.
with judged as (
    select
        cleaned.*,
        texts.*  exclude (interaction_id),
        case
            when $drop_errors and (
                coalesce(error, '') <> '' or lower(cleaned.status) in ('failure', 'failed', 'error', 'timeout', 'cancelled')
                or regexp_full_match(cleaned.status, '[45][0-9][0-9]')
            ) then 'error'
            when not json_valid(messages) or json_type(messages) <> 'ARRAY' then 'unreadable'
            when cleaned.status = 'prompt' then 'prompt_only'
            when cleaned.status = 'tokens' then 'ok'
            when $drop_cache_hits and cache_hit then 'cache_hit'
            when $drop_refused and (
                finish_reason in ('content_filter', 'refusal')
                or (json_valid(completion) and coalesce(completion ->> '$.refusal', '') <> '')
            ) then 'refused'
            when $drop_truncated and finish_reason in ('length', 'max_tokens') then 'truncated'
            when $drop_empty and (
                (coalesce(prompt_messages, 0) = 0 and cleaned.status <> 'text') or trim(coalesce(answer, '')) = ''
            ) then 'empty'
            when completion is null or not json_valid(completion) or json_type(completion) <> 'OBJECT' then 'unreadable'
            else 'ok'
        end as verdict
    from cleaned
    left join texts using (interaction_id)
)
select
    workload, dt, judged.interaction_id, content_sha256, session_id, ts, source, messages, tools, completion,
    verdict as status,
    verdicts.value as feedback,
    coalesce(prompt_characters, 0) as prompt_characters,
    coalesce(completion_characters, 0) as completion_characters,
    pii,
    cast(null as varchar) as language,
    cast(map {} as map(varchar, double)) as quality,
    shape_of(new_role, new_turn, messages, tools, client, instructions) as prompt_shape,
    -- token ids hold no text: two such rows are the same where every id and label is, and near nothing
    case when judged.status = 'tokens' then content_sha256 else normalised_sha256 end as normalised_sha256,
    coalesce(signed.signature, cast([] as integer[])) as signature,
    '' as cleaned_with
from judged
left join verdicts on verdicts.interaction_id = judged.interaction_id
left join signed
    on signed.interaction_id = judged.interaction_id and verdict = 'ok' and judged.status <> 'tokens'
order by session_id, ts, judged.interaction_id
