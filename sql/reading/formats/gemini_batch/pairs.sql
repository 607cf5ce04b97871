-- Each request-result pair as one record of format gemini, at the result's place, numbered from 0.
-- needs: pair_matches, pair_sides
-- makes: temp table pairs (number, object, row, raw)
create or replace temp table pairs as
with numbered as (
    select *, row_number() over (order by object, row) - 1 as number
    from pair_matches
    where candidates = 1
)

select
    numbered.number,
    numbered.object,
    numbered.row,
    cast(json_object(
        'request', json_extract(requests.raw, '$.request'),
        'response', coalesce(json_extract(responses.raw, '$.response'), '{}'),
        'error', json_extract(responses.raw, '$.error')
    ) as varchar) as raw
from numbered
inner join pair_sides as requests on requests.object = numbered.request_object and requests.row = numbered.request_row
inner join pair_sides as responses on responses.object = numbered.object and responses.row = numbered.row
order by numbered.number
