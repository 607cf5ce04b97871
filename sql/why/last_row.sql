-- The last line of an object that left a row or a quarantine entry, and the problem of the object as a whole, if any.
-- needs: decisions_history, feedback, interactions, quarantine
-- parameters: $uri
-- makes: rows (row, problem)
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
