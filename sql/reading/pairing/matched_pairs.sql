-- Each request with its response, at the response's place, numbered from 0.
-- needs: pair_matches, pair_sides
-- makes: temp view matched_pairs (number, object, row, request, response)
create or replace temp view matched_pairs as
with numbered as (
    select *, row_number() over (order by object, row) - 1 as number
    from pair_matches
    where candidates = 1
)

select numbered.number, numbered.object, numbered.row, requests.raw as request, responses.raw as response
from numbered
inner join pair_sides as requests on requests.object = numbered.request_object and requests.row = numbered.request_row
inner join pair_sides as responses on responses.object = numbered.object and responses.row = numbered.row
