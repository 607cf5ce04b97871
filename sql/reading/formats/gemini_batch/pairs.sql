-- Each request-result pair as one record of format gemini.
-- needs: matched_pairs
-- makes: temp table pairs (number, object, row, raw)
create or replace temp table pairs as
select
    number,
    object,
    row,
    cast(json_object(
        'request', json_extract(request, '$.request'),
        'response', coalesce(json_extract(response, '$.response'), '{}'),
        'error', json_extract(response, '$.error')
    ) as varchar) as raw
from matched_pairs
order by number
