-- Pairs as one record each, at the response's place, numbered from 0.
create or replace temp table pairs as
with numbered as (
    select *, row_number() over (order by object, row) - 1 as number
    from pairing
    where candidates = 1
)

select
    numbered.number,
    numbered.object,
    numbered.row,
    cast(json_object(
        'request', json_extract(asked.raw, '$.body'),
        'response', json_extract(said.raw, '$.response.body'),
        'error', case when json_type(said.raw, '$.error') = 'OBJECT' then json_extract(said.raw, '$.error') end,
        'request_id', coalesce(said.raw ->> '$.response.request_id', said.raw ->> '$.id'),
        'trace_id', said.raw ->> '$.id'
    ) as varchar) as raw
from numbered
inner join halves as asked on asked.object = numbered.asked_object and asked.row = numbered.asked_row
inner join halves as said on said.object = numbered.object and said.row = numbered.row
order by numbered.number
