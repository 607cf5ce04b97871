-- Feedback that names an id which no interaction has.
-- $identifier
select distinct name, printf('%s:%d', source_uri, source_row) as line
from feedback
where $identifier in (interaction_id, given_id, request_id, trace_id, session_id)
order by line
