-- Each request-response pair as one record of format openai_pairs.
-- needs: matched_pairs
-- makes: temp table pairs (number, object, row, raw)
create or replace temp table pairs as
select
    number,
    object,
    row,
    cast(json_object(
        'request', json_extract(request, '$.body'),
        'response', json_extract(response, '$.response.body'),
        'error', case when json_type(response, '$.error') = 'OBJECT' then json_extract(response, '$.error') end,
        'request_id', coalesce(response ->> '$.response.request_id', response ->> '$.id'),
        'trace_id', response ->> '$.id'
    ) as varchar) as raw
from matched_pairs
order by number
