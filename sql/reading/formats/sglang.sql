-- name: interactions
-- Interactions of SGLang's request log, and of vLLM's (reading/formats/vllm/pairs, with `engine`, `choice` and `problem`).
with parsed as (
    select
        object,
        row,
        json_transform(raw, '{
            "timestamp": "VARCHAR", "event": "VARCHAR", "rid": "VARCHAR", "engine": "VARCHAR", "choice": "INTEGER", "problem": {"code": "VARCHAR", "words": "VARCHAR"},
            "obj": {"text": "JSON", "input_ids": ["INTEGER"], "sampling_params": "JSON", "image_data": "JSON",
                    "video_data": "JSON", "audio_data": "JSON", "lora_path": "JSON", "model": "VARCHAR",
                    "session_params": {"id": "VARCHAR"}},
            "out": {"text": "VARCHAR", "output_ids": ["INTEGER"],
                    "meta_info": {"id": "VARCHAR", "finish_reason": "JSON", "prompt_tokens": "BIGINT",
                                  "completion_tokens": "BIGINT", "cached_tokens": "BIGINT",
                                  "weight_version": "VARCHAR", "reasoning_tokens": "BIGINT", "e2e_latency": "DOUBLE"}}
        }') as record
    from records
),
-- Token ids that the log has cut contain "...", which is not a number
whole as (
    select
        object, row, record,
        record.event = 'request.received' as repeated,
        record.obj.text ->> '$' as prompt,
        json_type(record.obj.text) as prompt_type,
        record.out.text as answer_text,
        case when len(list_filter(record.obj.input_ids, lambda id: id is null)) = 0 and len(record.obj.input_ids) > 0
            then record.obj.input_ids end as prompt_token_ids,
        case when len(list_filter(record.out.output_ids, lambda id: id is null)) = 0 and len(record.out.output_ids) > 0
            then record.out.output_ids end as completion_token_ids,
        record.out.meta_info as meta,
        coalesce(record.out.meta_info.finish_reason ->> '$.type', record.out.meta_info.finish_reason ->> '$') as ended
    from parsed
),
examined as (
    select
        *,
        ended = 'abort' as failed,
        (length(prompt) = 2051 and prompt[1025:1027] = '...') or (length(answer_text) = 2051 and answer_text[1025:1027] = '...') as cut,
        coalesce(json_type(record.obj.image_data), json_type(record.obj.video_data), json_type(record.obj.audio_data),
                 'NULL') <> 'NULL' as multimodal,
        nullif(prompt, '') is null and answer_text is null and prompt_token_ids is not null
            and completion_token_ids is not null as only_tokens,
        case when not repeated and prompt_type = 'VARCHAR' then templated_messages(prompt) end as turns,
        regexp_replace(answer_text, '(<\|im_end\|>|<\|eot_id\|>|</s>)\s*$', '') as answer
    from whole
),
thought as (
    select
        *,
        contains(answer, '</think>')
            and (starts_with(answer, '<think>') or regexp_matches(prompt, '<think>\s*$')) as has_thought
    from examined
),
answered as (
    select
        *,
        case when has_thought then trim(
            split_part(regexp_replace(answer, '^<think>', ''), '</think>', 1), chr(10) || ' '
        ) end as reasoning,
        case
            when has_thought then ltrim(substr(answer, instr(answer, '</think>') + 8), chr(10) || ' ')
            else answer
        end as content
    from thought
)
select
    object,
    row,
    0 as part,
    coalesce(record.engine, 'sglang') as format,
    coalesce(record.rid, meta.id) as request_id,
    record.rid as trace_id,
    coalesce(record.choice, 0) as choice_index,
    record.timestamp as written_ts,
    record.obj.session_params.id as session_id,
    coalesce(record.obj.model, case json_type(record.obj.lora_path) when 'VARCHAR' then record.obj.lora_path ->> '$' end)
        as model,
    coalesce(record.engine, 'sglang') as provider,
    served_digest(meta.weight_version) as served_model_digest,
    case
        when repeated or only_tokens then null
        when turns is not null then to_json(turns)
        when nullif(prompt, '') is not null then to_json([struct_pack("role" := 'user', "content" := prompt)])
    end as messages,
    case
        when repeated then null
        when turns is null and not only_tokens
            then json_merge_patch(coalesce(record.obj.sampling_params, '{}'), '{"templated": true}')
        else record.obj.sampling_params
    end as params,
    case
        when content is null then null
        when reasoning is null then to_json(struct_pack("role" := 'assistant', "content" := content))
        else to_json(struct_pack("role" := 'assistant', "content" := content, "reasoning_content" := reasoning))
    end as completion, reasoning, prompt_token_ids, completion_token_ids,
    case when not coalesce(failed, false) then ended end as finish_reason,
    case when failed then coalesce(meta.finish_reason ->> '$.message', 'abort') end as error,
    meta.prompt_tokens as prompt_tokens, meta.completion_tokens as completion_tokens, meta.cached_tokens as cached_tokens,
    meta.reasoning_tokens as reasoning_tokens,
    meta.e2e_latency * 1000 as latency_ms,
    case when failed then 'failure' when only_tokens then 'tokens' else 'success' end as status,
    case
        when repeated then 'skipped'
        when record.problem.code is not null then record.problem.code
        when cut then 'truncated_log'
        when prompt_type not in ('VARCHAR', 'NULL') then 'wrong_type'
        when multimodal then 'missing_field'
        when only_tokens then null
        when nullif(prompt, '') is null then 'missing_field'
        when answer_text is null and not coalesce(failed, false) then 'missing_field'
    end as error_code,
    case
        when repeated then 'sglang_received'
        when record.problem.code is not null then record.problem.words
        when cut then 'the log cut this text to 2048 characters; run SGLang with --log-requests-level 3'
        when prompt_type not in ('VARCHAR', 'NULL') then 'obj.text is not one text'
        when multimodal then 'the prompt has images, video or audio, which the log does not hold'
        when only_tokens then null
        when nullif(prompt, '') is null
            then 'the log holds neither text nor token ids; run SGLang with --log-requests-level 3'
        when answer_text is null and not coalesce(failed, false) then 'the answer has no text'
    end as message
from answered
