-- Rows that are kept. split_group is the oldest session that shares texts with the row's session; it decides the row's split.
-- text and token_ids are set for rows that are not conversations; their messages are []. was_cut: the answer ended at the token
-- limit (kept only where curation.status.drop_truncated is off).
-- needs: cleaned_interactions, decided, interactions, labels_of(), session_groups, sessions
-- makes: rows (interaction_id, workload, dt, ts, source, session_id, split_group, messages, tools, completion, reasoning,
--     request, feedback, prompt_shape, prompt_characters, completion_characters, content_sha256, normalised_sha256, quality,
--     difficulty, text, token_ids, labels, was_cut)
with oldest as (
    select sessions.session_id, coalesce(first.session_id, sessions.session_id) as split_group
    from sessions
    left join session_groups using (place)
    left join sessions as first on first.place = session_groups.first
)
select
    rows.interaction_id, rows.workload, rows.dt, rows.ts, rows.source, rows.session_id, oldest.split_group,
    rows.messages, rows.tools, rows.completion, rows.reasoning, rows.request, decided.feedback_value as feedback,
    rows.prompt_shape, rows.prompt_characters, rows.completion_characters, rows.content_sha256, rows.normalised_sha256, decided.judged_quality as quality,
    decided.difficulty,
    case when raw.status = 'text' then rows.completion ->> '$.content' end as text,
    case when raw.status = 'tokens' then list_concat(raw.prompt_token_ids, raw.completion_token_ids) end as token_ids,
    case when raw.status = 'tokens' then labels_of(raw.prompt_token_ids, raw.completion_token_ids, raw.params) end
        as labels,
    coalesce(raw.finish_reason in ('length', 'max_tokens'), false) as was_cut
from cleaned_interactions as rows
join decided using (interaction_id)
join oldest on oldest.session_id = rows.session_id
left join interactions as raw on raw.interaction_id = rows.interaction_id
    and (raw.status in ('text', 'tokens') or raw.finish_reason in ('length', 'max_tokens'))
where decided.kept
order by rows.session_id, rows.ts, rows.interaction_id
