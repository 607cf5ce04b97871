-- Logged prompts that came with data to verify an answer (RFT lines), with the user of their session.
-- needs: cleaned_interactions, interactions
-- parameters: $split_by
-- makes: temp table logged_prompts (row_id, origin, source, session_id, workload, ts, messages, tools, verifier, interaction_ids,
--     split_group, language)
create or replace temp table logged_prompts as
select
    rows.interaction_id as row_id, 'interaction' as origin, rows.source, rows.session_id, rows.workload, rows.ts, rows.messages,
    rows.tools, cast(raw.params -> '$.item' as varchar) as verifier, [rows.interaction_id] as interaction_ids,
    coalesce(if($split_by = 'user', raw.user_hash, null), rows.session_id) as split_group, rows.language
from cleaned_interactions as rows
join interactions as raw using (interaction_id)
where rows.status = 'prompt_only' and raw.params ->> '$.item' is not null
