-- The rows that stay. split_group is the oldest session among those that share texts with the row's session: what decides
-- the row's side of a split.
with oldest as (
    select sessions.session_id, coalesce(first.session_id, sessions.session_id) as split_group
    from sessions
    left join session_groups using (place)
    left join sessions as first on first.place = session_groups.first
)
select
    rows.interaction_id, rows.workload, rows.dt, rows.ts, rows.source, rows.session_id, oldest.split_group,
    rows.messages, rows.tools, rows.completion, decided.opinion as feedback, rows.prompt_shape, rows.prompt_characters,
    rows.completion_characters, rows.content_sha256, rows.normalised_sha256, decided.judged_quality as quality,
    decided.difficulty
from cleaned_interactions as rows
join decided using (interaction_id)
join oldest on oldest.session_id = rows.session_id
where decided.kept
order by rows.session_id, rows.ts, rows.interaction_id
