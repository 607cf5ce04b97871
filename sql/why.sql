-- name: interactions_with_id
-- Interactions with an id, and the kind of that id; the most specific kind that matches.
with named as (
    select interaction_id, ts, 1 as telling, 'interaction' as what from interactions where interaction_id = $identifier
    union
    select interaction_id, null, 1, 'interaction' from decisions_history where interaction_id = $identifier
    union
    select interaction_id, ts, 2, 'request' from interactions where request_id = $identifier
    union
    select interaction_id, ts, 2, 'request' from interactions where alias_id = $identifier
    union
    select interaction_id, ts, 3, 'trace' from interactions where trace_id = $identifier
    union
    select interaction_id, ts, 4, 'session' from interactions where session_id = $identifier
    union
    select interaction_id, ts, 4, 'session' from cleaned_interactions where session_id = $identifier
    union
    select interaction_id, ts, 5, 'interaction' from interactions
    where regexp_full_match($identifier, '[0-9a-f]{8,}') and starts_with(interaction_id, $identifier)
    union
    select interaction_id, null, 5, 'interaction' from decisions_history
    where regexp_full_match($identifier, '[0-9a-f]{8,}') and starts_with(interaction_id, $identifier)
)
select interaction_id, telling, any_value(what) as what, min(ts) as ts
from named
where telling = (select min(telling) from named)
group by interaction_id, telling
order by ts, interaction_id

-- name: feedback_about
-- Feedback with an id that no interaction has.
select distinct name, printf('%s:%d', source_uri, source_row) as line
from feedback
where $identifier in (interaction_id, given_id, request_id, trace_id, session_id)
order by line

-- name: of_object
-- Outcomes of one log object's records, counted by table.
with outcomes as (
    select 1 as place, 'interactions' as stage, 'read' as rule, true as kept, count(*) as records, min(source_row) as first_row
    from interactions
    where source_uri = $uri
    union all
    select 2, 'feedback', name, true, count(*), min(source_row)
    from feedback
    where source_uri = $uri
    group by name
    union all
    select
        3, 'ingest', rule, false, coalesce(sum(cast(detail ->> '$.records' as bigint)), count(*))::bigint,
        min(cast(detail ->> '$.row' as bigint))
    from decisions_history
    where stage = 'ingest' and (detail ->> '$.uri') = $uri
    group by rule
    union all
    select 4, 'quarantine', error_code, false, count(*), min(source_row)
    from quarantine
    where source_uri = $uri
    group by error_code
)
select stage, rule, kept, records, first_row
from outcomes
where records > 0
order by place, records desc, rule

-- name: line
-- The outcomes of one line of a log object. Row 0 of the quarantine is the object as a whole.
with lines as (
    select
        interaction_id, 'interactions' as stage, 'read' as rule, null as detail, null as about, null as tie, ts as at
    from interactions
    where source_uri = $uri and source_row = $row
    union all
    select interaction_id, 'ingest', rule, null, null, null, null
    from decisions_history
    where stage = 'ingest' and (detail ->> '$.uri') = $uri and cast(detail ->> '$.row' as bigint) = $row
    union all
    select null, 'quarantine', error_code, message, null, null, null
    from quarantine
    where source_uri = $uri and source_row = $row
    union all
    select
        null, 'feedback', name, coalesce(printf('value %g', value), 'label only'),
        coalesce(given_id, request_id, trace_id, session_id, interaction_id), tie, ts
    from feedback
    where source_uri = $uri and source_row = $row
)
select distinct * from lines order by interaction_id nulls last, stage, rule

-- name: retired
-- Interactions whose rows retention removed: with an id (the first digits of an interaction's do), of a line, or of a list.
select workload, interaction_id, source_uri, source_row, dt, removed_at
from retired
where $identifier in (interaction_id, request_id, alias_id, trace_id, session_id)
    or (regexp_full_match($identifier, '[0-9a-f]{8,}') and starts_with(interaction_id, $identifier))
    or list_contains($ids, interaction_id)
    or (source_uri = $uri and source_row = $row)
order by ts, interaction_id

-- name: last_row
-- The last line of an object that left a row or a quarantine entry, and the problem of the object as a whole, if any.
with traces as (
    select source_row as row, null as problem from interactions where source_uri = $uri
    union all
    select source_row, case when source_row = 0 then error_code || ': ' || message end from quarantine where source_uri = $uri
    union all
    select source_row, null from feedback where source_uri = $uri
    union all
    select cast(detail ->> '$.row' as bigint), null
    from decisions_history
    where stage = 'ingest' and (detail ->> '$.uri') = $uri
)
select max(row) as row, any_value(problem) as problem from traces

-- name: subjects
-- Ids, session, user, model and time of some interactions, for the heading.
select
    interaction_id, workload, ts, request_id, session_id, source, source_format, source_uri, source_row, model,
    prompt_tokens, completion_tokens, finish_reason
from interactions
where list_contains($ids, interaction_id)

-- name: steps
-- Every step of some interactions through the pipeline.
select * from steps_of($ids)

-- name: folder
-- Number of log objects in a folder, by any of its spellings, else by the end of its path, and the first of them. $spellings,
-- $ending: end with a slash
with known as (
    select distinct uri, nfc_normalize(uri) as path from objects
),
inside as (
    select uri, true as is_exact
    from known
    where len(list_filter($spellings, lambda folder: starts_with(path, folder))) > 0
    union all
    select uri, false
    from known
    where contains(path, $ending)
)
select count(distinct uri) as objects, min(uri) as first_uri
from inside
where is_exact or not exists (from inside where is_exact)

-- name: objects
-- Log objects that a path may mean: the first of its spellings that exists, else objects whose uri ends like it. $spellings: in
-- order of preference. $ending: null to match whole uris only
with named as (
    select
        workload, uri, state, rows, days, format, problem, list_position($spellings, nfc_normalize(uri)) as place
    from objects
    where list_contains($spellings, nfc_normalize(uri)) or ends_with(nfc_normalize(uri), $ending)
)
select * exclude (place)
from named
where place is not distinct from (select min(place) from named)
order by uri, workload

-- name: of_name
-- Log objects with a file name, in any folder.
select distinct uri
from objects
where parse_filename(nfc_normalize(uri)) = $name
order by uri
limit 4

-- name: of_size
-- Local log objects of a size.
select workload, uri, state, rows, days, format, problem
from objects
where bytes = $bytes and starts_with(uri, '/')
order by uri, workload
