-- What curation needs of the rows as logged: ids that feedback may name, the user, and how the answer ended.
-- needs: interactions
-- makes: temp table logged_rows (interaction_id, request_id, alias_id, trace_id, user_hash, ts, status, finish_reason)
create or replace temp table logged_rows as
select interaction_id, request_id, alias_id, trace_id, user_hash, ts, status, finish_reason
from interactions
