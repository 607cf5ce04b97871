-- The outcomes of one line of a log object. Row 0 of the quarantine is the object as a whole.
-- needs: decisions_history, feedback, interactions, quarantine
-- parameters: $row, $uri
-- makes: rows (*)
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
