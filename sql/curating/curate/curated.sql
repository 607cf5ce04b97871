-- Rows that are kept. user_hash is the user of the session: the first one that its requests name. text and token_ids are set for
-- rows that are not conversations; their messages are []. was_cut: the answer ended at the token limit (kept only where
-- curation.status.drop_truncated is off).
-- needs: cleaned_interactions, cleaned_rows, decided, labels_of(), logged_rows, logged_tokens
-- makes: rows (interaction_id, workload, dt, ts, source, session_id, user_hash, messages, tools, completion, reasoning,
--     request, feedback, prompt_shape, prompt_characters, completion_characters, content_sha256, normalised_sha256, quality,
--     difficulty, text, token_ids, labels, was_cut, language, signature)
with users as (
    select cleaned_rows.session_id, arg_min(logged_rows.user_hash, (logged_rows.ts, logged_rows.interaction_id)) as user_hash
    from cleaned_rows
    join logged_rows using (interaction_id)
    where logged_rows.user_hash is not null
    group by cleaned_rows.session_id
)
select
    decided.interaction_id, known.workload, known.dt, known.ts, texts.source, known.session_id, users.user_hash,
    texts.messages, texts.tools, texts.completion, texts.reasoning, texts.request, decided.feedback_value as feedback,
    texts.prompt_shape, known.prompt_characters, known.completion_characters, known.content_sha256, known.normalised_sha256,
    decided.judged_quality as quality, decided.difficulty,
    case when logged_rows.status = 'text' then texts.completion ->> '$.content' end as text,
    case when logged_rows.status = 'tokens' then list_concat(logged_tokens.prompt_token_ids, logged_tokens.completion_token_ids)
        end as token_ids,
    case when logged_rows.status = 'tokens' then
        labels_of(logged_tokens.prompt_token_ids, logged_tokens.completion_token_ids, logged_tokens.params) end as labels,
    coalesce(logged_rows.finish_reason in ('length', 'max_tokens'), false) as was_cut,
    texts.language, known.signature
from decided
join cleaned_rows as known using (interaction_id)
join cleaned_interactions as texts using (interaction_id)
left join users on users.session_id = known.session_id
left join logged_rows using (interaction_id)
left join logged_tokens using (interaction_id)
where decided.kept
order by known.session_id, known.ts, decided.interaction_id
