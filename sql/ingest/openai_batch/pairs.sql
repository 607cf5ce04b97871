-- Pairs as one record each, at the response's place.
create or replace temp table pairs as
select
    pairing.object,
    pairing.row,
    cast(json_object(
        'request', json_extract(asked.raw, '$.body'),
        'response', json_extract(said.raw, '$.response.body'),
        'error', case when json_type(said.raw, '$.error') = 'OBJECT' then json_extract(said.raw, '$.error') end,
        'request_id', coalesce(said.raw ->> '$.response.request_id', said.raw ->> '$.id'),
        'trace_id', said.raw ->> '$.id'
    ) as varchar) as raw
from pairing
inner join halves as asked on asked.object = pairing.asked_object and asked.row = pairing.asked_row
inner join halves as said on said.object = pairing.object and said.row = pairing.row
where pairing.candidates = 1
order by pairing.object, pairing.row
