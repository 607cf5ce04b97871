-- Requests and responses of vLLM's log, for resources/reading/pairing.py.
-- needs: pair_sides, records
-- makes: rows into pair_sides (form, object, row, side, custom_id, raw)
insert into pair_sides
select
    'vllm' as form,
    object,
    row,
    raw ->> '$.vllm' as side,
    raw ->> '$.id' as custom_id,
    raw
from records
