-- Rows that reach curation with the ids that feedback may name, as input of curating/clean/row_feedback.sql. Feedback is read
-- again because it may arrive after its day was cleaned.
-- needs: cleaned_interactions, interactions
-- makes: temp table conversations (workload, interaction_id, request_id, alias_id, trace_id, session_id)
create or replace temp table conversations as
select
    cleaned_interactions.workload, cleaned_interactions.interaction_id, interactions.request_id, interactions.alias_id,
    interactions.trace_id, cleaned_interactions.session_id
from cleaned_interactions
left join interactions using (interaction_id)
where cleaned_interactions.status = 'ok'
