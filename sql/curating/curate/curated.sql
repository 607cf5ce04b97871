-- Rows that are kept. user_hash is the user of the session: the first one that its requests name. text and token_ids are set for
-- rows that are not conversations; their messages are []. was_cut: the answer ended at the token limit (kept only where
-- curation.status.drop_truncated is off).
-- needs: cleaned_interactions, decided, interactions, labels_of()
-- makes: rows (interaction_id, workload, dt, ts, source, session_id, user_hash, messages, tools, completion, reasoning,
--     request, feedback, prompt_shape, prompt_characters, completion_characters, content_sha256, normalised_sha256, quality,
--     difficulty, text, token_ids, labels, was_cut, language, signature)
with users as (
    select rows.session_id, arg_min(raw.user_hash, (raw.ts, raw.interaction_id)) as user_hash
    from cleaned_interactions as rows
    join interactions as raw using (interaction_id)
    where raw.user_hash is not null
    group by rows.session_id
)
select
    rows.interaction_id, rows.workload, rows.dt, rows.ts, rows.source, rows.session_id, users.user_hash,
    rows.messages, rows.tools, rows.completion, rows.reasoning, rows.request, decided.feedback_value as feedback,
    rows.prompt_shape, rows.prompt_characters, rows.completion_characters, rows.content_sha256, rows.normalised_sha256, decided.judged_quality as quality,
    decided.difficulty,
    case when raw.status = 'text' then rows.completion ->> '$.content' end as text,
    case when raw.status = 'tokens' then list_concat(raw.prompt_token_ids, raw.completion_token_ids) end as token_ids,
    case when raw.status = 'tokens' then labels_of(raw.prompt_token_ids, raw.completion_token_ids, raw.params) end
        as labels,
    coalesce(raw.finish_reason in ('length', 'max_tokens'), false) as was_cut,
    rows.language, rows.signature
from cleaned_interactions as rows
join decided using (interaction_id)
left join users on users.session_id = rows.session_id
left join interactions as raw on raw.interaction_id = rows.interaction_id
    and (raw.status in ('text', 'tokens') or raw.finish_reason in ('length', 'max_tokens'))
where decided.kept
order by rows.session_id, rows.ts, rows.interaction_id
