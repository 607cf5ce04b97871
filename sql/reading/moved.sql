-- name: ingest_decisions
-- Decisions of ingest. Other stages have details that are not JSON.
create temp table ingest_decisions as
select * from decisions where stage = 'ingest'

-- name: decisions
-- Ingest decisions with moved objects under their new uri: the dropped copy and the copy that stays. detail is text as to_json
-- writes it.
with renamed_places as (
    select ingest_decisions.* replace (
        case
            when moved.uri is null then detail
            else replace(detail, concat('"uri":', to_json(moved.old_uri)), concat('"uri":', to_json(moved.uri)))
        end as detail
    )
    from ingest_decisions
    left join moved on (detail ->> '$.uri') = moved.old_uri
)
select renamed_places.* replace (
    case
        when moved.uri is null then detail
        else replace(detail, concat('"kept_uri":', to_json(moved.old_uri)), concat('"kept_uri":', to_json(moved.uri)))
    end as detail
)
from renamed_places
left join moved on (detail ->> '$.kept_uri') = moved.old_uri

-- name: quarantine
-- The quarantine with moved objects under their new uri.
select quarantine.* replace (coalesce(moved.uri, source_uri) as source_uri)
from quarantine
left join moved on quarantine.source_uri = moved.old_uri

-- name: days
-- Days with rows of moved objects. The table is a name in our code, never input.
-- placeholders: table
select distinct dt
from {table}
semi join moved on {table}.source_uri = moved.old_uri
order by dt

-- name: rows
-- Rows of some days with moved objects under their new uri. The table is a name in our code, never input.
-- placeholders: table
select {table}.* replace (coalesce(moved.uri, source_uri) as source_uri)
from {table}
left join moved on {table}.source_uri = moved.old_uri
where list_contains($days, dt)

-- name: are_named
-- Whether a table without days names a moved object. Table and column are names in our code, never input.
-- placeholders: column, table
select count(*) > 0
from {table}
semi join moved on {column} = moved.old_uri
