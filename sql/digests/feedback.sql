-- The same for feedback, which has no ids of its own: the hash of each record as it was given. What it was tied to later is no news
-- to curation, which asks for all rows that an id names.
select
    dt,
    md5(to_json({
    interaction: case when tie is null then interaction_id else given_id end, request: request_id, trace: trace_id,
    session: session_id, name: name, value: value, ts: ts
})::varchar) as line
from feedback
order by dt, line
