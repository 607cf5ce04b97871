-- For clean/messages.sql: the conversations to be compared with the evaluation items.
create or replace temp view conversations as
select interaction_id, messages, completion
from cleaned_interactions
where status = 'ok'
