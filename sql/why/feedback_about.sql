-- Feedback with an id that no interaction has.
-- needs: feedback
-- parameters: $identifier
-- makes: rows (name, line)
select distinct name, printf('%s:%d', source_uri, source_row) as line
from feedback
where $identifier in (interaction_id, given_id, request_id, trace_id, session_id)
order by line
