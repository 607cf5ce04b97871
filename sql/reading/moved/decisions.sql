-- Ingest decisions with moved objects under their new uri: the dropped copy and the copy that stays. detail is text as to_json
-- writes it.
-- needs: ingest_decisions, moved
-- makes: rows (renamed_places.*)
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
