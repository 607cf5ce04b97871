-- Lines that identify a slice of feedback: the hash of each record as logged. Later ties do not count, since curation uses
-- every row that an id names.
-- needs: feedback
-- makes: rows (dt, line)
select
    dt,
    md5(to_json({
    interaction: case when tie is null then interaction_id else given_id end, request: request_id, trace: trace_id,
    session: session_id, name: name, value: value, ts: ts
})::varchar) as line
from feedback
order by dt, line
