-- The ingest's decisions, with moved objects under the uri of now: the copy that left, and the one that stayed. A detail is text
-- as to_json writes it.
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
