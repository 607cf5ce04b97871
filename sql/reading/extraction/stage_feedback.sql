-- Feedback that passed the checks.
-- needs: checked_feedback, staged_feedback
-- makes: rows into staged_feedback (object, row, part, extra, copied, workload, dt, interaction_id, request_id, trace_id,
--     session_id, name, value, label, source, comment, ts, source_uri, source_row)
insert into staged_feedback by name
select
    object, row, part, extra, copied, workload, cast(ts as date) as dt, interaction_id, request_id, trace_id, session_id, name,
    value, label, source, comment, ts, uri as source_uri, row as source_row
from checked_feedback
where error_code is null
