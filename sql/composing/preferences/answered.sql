-- Cleaned answers with their feedback; without rows that curation dropped as contaminated or of low quality.
-- needs: cleaned_interactions, decisions, prompts, row_feedback
-- parameters: $curated
-- makes: temp table answered (interaction_id, session_id, workload, source, ts, messages, tools, completion, language, prompt,
--     answer, value)
create or replace temp table answered as
select
    rows.interaction_id, rows.session_id, rows.workload, rows.source, rows.ts, rows.messages, rows.tools, rows.completion,
    rows.language, prompts.prompt, prompts.answer, row_feedback.value
from cleaned_interactions as rows
join prompts using (interaction_id)
left join row_feedback using (interaction_id)
where interaction_id not in (
    select interaction_id
    from decisions
    where stage = 'curate' and version = $curated and rule in ('contaminated', 'low_quality')
)
