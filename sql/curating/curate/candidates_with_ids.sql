-- Rows that reach curation with the ids that feedback may name, as input of curating/clean/row_feedback.sql. Feedback is read
-- again because it may arrive after its day was cleaned.
-- needs: cleaned_rows, logged_rows
-- makes: temp table conversations (workload, interaction_id, request_id, alias_id, trace_id, session_id)
create or replace temp table conversations as
select
    cleaned_rows.workload, cleaned_rows.interaction_id, logged_rows.request_id, logged_rows.alias_id, logged_rows.trace_id,
    cleaned_rows.session_id
from cleaned_rows
left join logged_rows using (interaction_id)
where cleaned_rows.status = 'ok'
