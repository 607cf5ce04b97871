-- The same for feedback, which has no ids of its own: the hash of each record.
select md5(to_json(
    {interaction: interaction_id, request: request_id, trace: trace_id, session: session_id, name: name, value: value, ts: ts}
)::varchar) as line
from feedback
order by line
