-- Requests and responses without a partner, or with several candidates.
-- needs: pair_matches, pair_sides, quarantined
-- parameters: $form
-- makes: rows into quarantined (object, row, error_code, message, raw)
insert into quarantined by name
with paired as (
    select object, row from pair_matches where candidates = 1
    union
    select request_object, request_row from pair_matches where candidates = 1
),

claimed as (
    select object, row from pair_matches
    union
    select request_object, request_row from pair_matches
)

select
    pair_sides.object,
    pair_sides.row,
    case
        when pair_sides.side is null then 'missing_field'
        when claimed.object is not null then 'ambiguous_custom_id'
        else 'unpaired'
    end as error_code,
    case
        when pair_sides.side is null then 'the line has no id of its request (custom_id, key), or neither request nor response nor error'
        when claimed.object is not null and $form = 'vllm' then concat(
            'several requests of this folder have the id ', pair_sides.custom_id[:100], '; the same log seems to be there twice'
        )
        when claimed.object is not null then concat(
            'several requests of this folder have the ', if($form = 'gemini_batch', 'key ', 'custom_id '), pair_sides.custom_id[:100],
            '; give a batch''s files one name (b1_input.jsonl, b1_output.jsonl) or a folder'
        )
        when pair_sides.side = 'request' and $form = 'vllm' then concat(
            'no response to the request ', pair_sides.custom_id[:100], ' in this folder; run vLLM with --enable-log-outputs too'
        )
        when $form = 'vllm' then concat('no request of the id ', pair_sides.custom_id[:100], ' in this folder')
        when pair_sides.side = 'request' then concat('no response for the ', if($form = 'gemini_batch', 'key ', 'custom_id '), pair_sides.custom_id[:100], ' in this folder')
        else concat('no request for the ', if($form = 'gemini_batch', 'key ', 'custom_id '), pair_sides.custom_id[:100], ' in this folder')
    end as message,
    encode(pair_sides.raw)[:4096] as raw
from pair_sides
anti join paired using (object, row)
left join claimed using (object, row)
where pair_sides.form = $form
