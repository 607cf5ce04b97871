-- For curating/clean/row_feedback.sql: all cleaned rows, with the ids that feedback may name.
create or replace temp view conversations as
select
    cleaned_interactions.workload, cleaned_interactions.interaction_id, interactions.request_id, interactions.alias_id,
    interactions.trace_id, cleaned_interactions.session_id
from cleaned_interactions
left join interactions using (interaction_id)
