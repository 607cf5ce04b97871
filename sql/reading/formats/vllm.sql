-- name: pair_sides
-- Requests and responses of vLLM's log, for resources/reading/pairing.py.
insert into pair_sides
select
    'vllm' as form,
    object, row, raw ->> '$.vllm' as side, raw ->> '$.id' as custom_id, raw
from records

-- name: pairs
-- Each request-response pair of vLLM's log as one record of format sglang, at the response's place, numbered from 0. `problem`:
-- why the log's text is not the whole text. vLLM's time has no year: the object's day gives it.
create or replace temp table pairs as
with texts as (
    select
        object, row, side, raw ->> '$.prompt' as prompt,
        coalesce(raw ->> '$.prompt', raw ->> '$.output') as said,
        -- a template's last marker opens the answer, unless the prompt was cut
        coalesce(case
            when contains(prompt, '<|im_start|>')
                then not regexp_matches(prompt, '<\|im_start\|>assistant\n(<think>\s*(</think>\s*)?)?$')
            when contains(prompt, '<|start_header_id|>')
                then not regexp_matches(prompt, '<\|start_header_id\|>assistant<\|end_header_id\|>\s*$')
            when contains(prompt, '<start_of_turn>') then not regexp_matches(prompt, '<start_of_turn>model\s*$')
            when contains(prompt, '<|start|>') then not regexp_matches(prompt, '<\|start\|>assistant\s*$')
            when contains(prompt, '<|user|>') then not regexp_matches(prompt, '<\|assistant\|>\s*(<think>\s*(</think>\s*)?)?$')
            when contains(prompt, '<｜User｜>') then not regexp_matches(prompt, '<｜Assistant｜>\s*(</?think>\s*)?$')
            when contains(prompt, '[INST]') then not regexp_matches(prompt, '\[/INST\]\s*$')
        end, false) as is_open,
        json_array_length(raw, '$.prompt_token_ids') as ids
    from pair_sides
    where form = 'vllm'
),
longest as (
    select object, max(length(said)) as characters
    from texts
    group by object
),
-- lengths at which the log cuts, by object
cuts as (
    select object, length(said) as characters
    from texts
    where is_open
    union
    select object, length(said)
    from texts
    where length(said) >= 32 and length(said) = ids
    union
    select texts.object, longest.characters
    from texts
    inner join longest using (object)
    where longest.characters >= 64 and length(texts.said) >= 0.9 * longest.characters
    group by texts.object, longest.characters
    having count(distinct texts.said) filter (length(texts.said) = longest.characters) >= 3
        and count(distinct texts.said) filter (length(texts.said) = longest.characters)
            > count(distinct texts.said) filter (length(texts.said) < longest.characters)
),
cut_sides as (
    select texts.object, texts.row
    from texts
    semi join cuts on cuts.object = texts.object and cuts.characters = length(texts.said)
),
sides as (
    select
        pair_sides.*,
        cut_sides.object is not null as is_cut,
        case
            when regexp_full_match(pair_sides.raw ->> '$.time', '\d\d-\d\d .*') then concat(
                year(batch.fallback_ts + interval 2 day)
                - cast(substr(pair_sides.raw ->> '$.time', 1, 5) > strftime(batch.fallback_ts + interval 2 day, '%m-%d') as integer),
                '-', pair_sides.raw ->> '$.time'
            )
            else pair_sides.raw ->> '$.time'
        end as written
    from pair_sides
    inner join batch using (object)
    left join cut_sides using (object, row)
    where pair_sides.form = 'vllm'
),
-- several answers to a request are its choices
numbered as (
    select
        *,
        row_number() over (order by object, row) - 1 as number,
        row_number() over (partition by request_object, request_row order by object, row) - 1 as choice
    from pair_matches
    where candidates = 1
),
pairs_found as (
    select
        numbered.number, numbered.object, numbered.row, numbered.choice, requests.raw as asked, responses.raw as said,
        requests.written, case
            when coalesce(requests.raw ->> '$.prompt', requests.raw ->> '$.prompt_token_ids') is null
                then struct_pack(code := 'missing_field', words :=
                    'the log holds no prompt; run vLLM with VLLM_LOGGING_LEVEL=DEBUG, or log at a gateway')
            when requests.is_cut or responses.is_cut
                then struct_pack(code := 'truncated_log', words :=
                    'the log cut this text at the length of --max-log-len; run vLLM without that option')
            when regexp_matches(responses.raw ->> '$.output', '^\[tool_calls: .*\]$', 's')
                then struct_pack(code := 'missing_field', words :=
                    'the log holds the tool calls as a text, not as they were; log at a gateway')
            when regexp_full_match(responses.raw ->> '$.output', '<streaming_complete: \d+ tokens>')
                then struct_pack(code := 'missing_field', words :=
                    'the log holds the number of streamed tokens, not their text; run a newer vLLM')
        end as problem
    from numbered
    inner join sides as requests on requests.object = numbered.request_object and requests.row = numbered.request_row
    inner join sides as responses on responses.object = numbered.object and responses.row = numbered.row
)
select
    number, object, row,
    cast(json_object(
        'event', 'request.finished', 'engine', 'vllm', 'rid', asked ->> '$.id', 'timestamp', written, 'choice', choice,
        'problem', problem,
        'obj', json_object(
            'text', asked ->> '$.prompt', 'input_ids', json_extract(asked, '$.prompt_token_ids'),
            'sampling_params', json_extract(asked, '$.params'), 'lora_path', asked ->> '$.lora'
        ),
        'out', json_object(
            'text', said ->> '$.output', 'output_ids', json_extract(said, '$.output_token_ids'),
            'meta_info', json_object('finish_reason', said ->> '$.finish_reason')
        )
    ) as varchar) as raw,
    asked as request,
    said as response
from pairs_found
order by number
