-- name: called
-- Messages, or one message, whose tool calls all have their arguments as the text of a JSON object, and whose answers have no control
-- text. Only those are parsed that have a call whose arguments are an object, an empty text, null, or missing, a call of a custom
-- tool, or a sign of control text.
create or replace temp macro called(said) as
case
    when regexp_matches(said, '<[|｜]|[|｜]>|</?s>|<(eos|bos|eoa|pad)>|_of_turn>|\[/?INST\]|<(unused|SPECIAL_|/think|thought)|think▷|\[THINK|\[\||seed:|\[e~\[|\\u003[cC]|"custom"')
        or contains(said, '"function') and (
            regexp_matches(said, '"arguments"\s*:\s*([^"\s]|"(\s|\\[nrt])*null(\s|\\[nrt])*")')
            or len(regexp_extract_all(said, '"function(_call)?"\s*:\s*\{'))
                > len(regexp_extract_all(said, '"arguments"\s*:\s*"(\s|\\[nrt])*([^"\s\\]|\\[^nrt])'))
        )
        then normal_messages(said)
    else said
end

-- name: openai_role
-- The OpenAI role for a data set's name of the speaker (ShareGPT's human and gpt, OASST's prompter, ...); null for unknown
-- names.
create or replace temp macro openai_role(speaker) as
case lower(trim(speaker))
    when 'human' then 'user' when 'user' then 'user' when 'prompter' then 'user'
    when 'gpt' then 'assistant' when 'assistant' then 'assistant' when 'chatgpt' then 'assistant'
    when 'bing' then 'assistant' when 'bard' then 'assistant' when 'model' then 'assistant' when 'bot' then 'assistant'
    when 'ai' then 'assistant'
    when 'function_call' then 'assistant' when 'tool_call' then 'assistant'
    when 'system' then 'system' when 'developer' then 'developer'
    when 'tool' then 'tool' when 'observation' then 'tool' when 'function' then 'tool'
    when 'function_response' then 'tool' when 'tool_response' then 'tool'
end

-- name: openai_message
-- A message of a data set, {role, content, ...} or ShareGPT's {from, value}, in the OpenAI shape. An unknown role gives a message
-- without role.
create or replace temp macro openai_message(message) as
case
    when json_type(message) <> 'OBJECT' or json_extract(message, '$.from') is null then message
    when json_extract(message, '$.weight') is not null then to_json(struct_pack(
        "role" := openai_role(message ->> '$.from'),
        "content" := json_extract(message, '$.value'),
        "weight" := json_extract(message, '$.weight')
    ))
    else to_json(struct_pack("role" := openai_role(message ->> '$.from'), "content" := json_extract(message, '$.value')))
end

-- name: openai_messages
-- One side of an example as messages: a text is one message of role `speaker`, an object one message, a list a conversation.
create or replace temp macro openai_messages(content, speaker) as
case json_type(content)
    when 'VARCHAR' then [to_json(struct_pack("role" := speaker, "content" := content ->> '$'))]
    when 'OBJECT' then [openai_message(content)]
    when 'ARRAY' then list_transform(
        try_cast(case
            when regexp_matches(cast(content as varchar), '"from"\s*:\s*"(?i:function|tool|observation)')
                then call_turns(cast(content as varchar))
            else cast(content as varchar)
        end as json[]),
        lambda each: openai_message(each)
    )
    else cast([] as json[])
end

-- name: example_prompt
-- What prompt_of() tells of a line of examples: the messages before its answer (a whole conversation), an edit, or why a part of the prompt
-- has no place. Null for a conversation without a further key.
create or replace temp macro example_prompt(raw) as
case
    when not regexp_matches(raw, '"(messages|conversations?)"\s*:\s*\[') or regexp_matches(
        raw,
        '"(system(_prompt|_message)?|history|instruction|prompt|question|query|input|contexts?|passages?|documents?|article|images?|videos?|audios?'
        '|chosen|rejected_\w+)"\s*:'
    ) then json_transform(prompt_of(raw), '{"messages": "JSON", "edit": ["JSON"], "problem": "VARCHAR"}')
end

-- name: unpreferred
-- Why a preference line does not prefer its chosen answer, by its own scores: the rule that skips it; null where it does.
create or replace temp macro unpreferred(raw) as
case when regexp_matches(raw, '"(score_chosen|chosen_(score|rating)|status)"\s*:') then list_transform(
    [struct_pack(
        chosen := try_cast(coalesce(raw ->> '$.score_chosen', raw ->> '$.chosen_score', raw ->> '$.chosen_rating') as double),
        rejected := try_cast(coalesce(raw ->> '$.score_rejected', raw ->> '$.rejected_score', raw ->> '$.rejected_rating') as double),
        status := raw ->> '$.status'
    )],
    lambda each: case
        when each.chosen < each.rejected then 'contradictory_scores'
        when each.chosen = each.rejected or each.status = 'tie' then 'equal_scores'
    end
)[1] end

-- name: openai_tools
-- Tools in the OpenAI shape, from a list, its JSON text, or the bare functions of older requests. A custom tool, whose input is a
-- text, is a function with the argument `input`.
create or replace temp macro openai_tools(tools) as
to_json(list_transform(
    case json_type(tools)
        when 'ARRAY' then try_cast(tools as json[])
        when 'VARCHAR' then try_cast(nullif(tools ->> '$', '') as json[])
    end,
    lambda tool: case
        when tool ->> '$.type' = 'custom' then to_json(struct_pack("type" := 'function', "function" := json_merge_patch(
            '{}', json_object(
                'name', coalesce(tool ->> '$.custom.name', tool ->> '$.name'),
                'description', coalesce(tool ->> '$.custom.description', tool ->> '$.description')
            ),
            '{"parameters": {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}}'
        )))
        when json_extract(tool, '$.function') is null and json_extract(tool, '$.name') is not null
            then to_json(struct_pack("type" := 'function', "function" := tool))
        else tool
    end
))

-- name: openai_tool_calls
-- Tool calls in the OpenAI shape, whether the function is a nested object or its name is next to the id. Null for none.
create or replace temp macro openai_tool_calls(calls) as
case when len(calls) > 0 then to_json(list_transform(
    calls,
    lambda call: case
        when json_type(call, '$.function') = 'OBJECT' then call
        else to_json(struct_pack(
            "id" := coalesce(call ->> '$.id', call ->> '$.call_id'),
            "type" := 'function',
            "function" := struct_pack(
                "name" := call ->> '$.name',
                "arguments" := coalesce(call ->> '$.arguments', call ->> '$.args', call ->> '$.input', '{}')
            )
        ))
    end
)) end

-- name: otlp_call
-- What model_call_of() and joined_call_of() tell of an item, as columns.
create or replace temp macro otlp_call(told) as
json_transform(
    told,
    '{
        "kind": "VARCHAR", "rule": "VARCHAR", "request_id": "VARCHAR", "alias_id": "VARCHAR", "trace_id": "VARCHAR",
        "written_ts": "VARCHAR", "workload": "VARCHAR", "session_id": "VARCHAR", "user_id": "VARCHAR",
        "model": "VARCHAR", "provider": "VARCHAR", "fingerprint": "VARCHAR", "tools": "JSON", "params": "JSON", "messages": "JSON",
        "choices": [{"message": "JSON", "finish_reason": "VARCHAR"}], "prompt_tokens": "BIGINT",
        "completion_tokens": "BIGINT", "cached_tokens": "BIGINT", "reasoning_tokens": "BIGINT",
        "latency_ms": "DOUBLE", "ttft_ms": "DOUBLE", "cost": "DOUBLE", "error": "VARCHAR", "finish_reasons": ["VARCHAR"],
        "unread": ["VARCHAR"], "side": "VARCHAR", "span": "VARCHAR", "moment": "BIGINT",
        "evaluations": [{"name": "VARCHAR", "value": "DOUBLE", "label": "VARCHAR", "comment": "VARCHAR", "source": "VARCHAR",
                         "response_id": "VARCHAR", "written_ts": "VARCHAR"}]
    }'
)

-- name: otlp_items
-- Spans and log records of one OTLP document in order, each with its service; with_resource: and with the attributes of its resource.
create or replace temp macro otlp_items(raw, with_resource) as
list_concat(
    flatten(list_transform(
        json_transform(raw, '{"resourceSpans": [{
            "resource": {"attributes": [{"key": "VARCHAR", "value": {"stringValue": "VARCHAR"}}]},
            "scopeSpans": [{"spans": ["JSON"]}]
        }]}').resourceSpans,
        lambda sent: list_transform(
            flatten(list_transform(sent.scopeSpans, lambda scope: coalesce(scope.spans, []))),
            lambda span: struct_pack(item := case
                when with_resource then json_merge_patch(span, json_object('resource', sent.resource)) else span
            end, service := list_filter(
                sent.resource.attributes, lambda each: each.key = 'service.name'
            )[1].value.stringValue)
        )
    )),
    flatten(list_transform(
        json_transform(raw, '{"resourceLogs": [{
            "resource": {"attributes": [{"key": "VARCHAR", "value": {"stringValue": "VARCHAR"}}]},
            "scopeLogs": [{"logRecords": ["JSON"]}]
        }]}').resourceLogs,
        lambda sent: list_transform(
            flatten(list_transform(sent.scopeLogs, lambda scope: coalesce(scope.logRecords, []))),
            lambda logged: struct_pack(item := case
                when with_resource then json_merge_patch(logged, json_object('resource', sent.resource)) else logged
            end, service := list_filter(
                sent.resource.attributes, lambda each: each.key = 'service.name'
            )[1].value.stringValue)
        )
    ))
)

-- name: transcript_messages
-- A conversation written as one text, "\n\nHuman: ...\n\nAssistant: ..." (hh-rlhf), as messages.
create or replace temp macro transcript_messages(written) as
list_transform(
    list_filter(
        string_split(
            regexp_replace(
                concat(chr(10), chr(10), ltrim(translate(written, chr(30) || chr(31), '  '))),
                '\n\n(Human|Assistant|System):[ \t]?', chr(30) || '\1' || chr(31), 'g'
            ),
            chr(30)
        ),
        lambda turn: contains(turn, chr(31))
    ),
    lambda turn: to_json(struct_pack(
        "role" := openai_role(split_part(turn, chr(31), 1)), "content" := rtrim(split_part(turn, chr(31), 2), chr(10))
    ))
)

-- name: templated_messages
-- Messages of a prompt that a chat template rendered and that waits for an answer: ChatML (Qwen and others), Llama 3 and
-- Mistral, if every marker is in place; else null. Markers of tools stay part of their message's text.
create or replace temp macro templated_messages(prompt) as
case
    when contains(prompt, '<|im_start|>') then
        case when regexp_full_match(
            prompt,
            '(<\|endoftext\|>)?\s*(<\|im_start\|>(system|developer|user|assistant|tool)\n(?s:.*?)<\|im_end\|>\s*)+'
            '<\|im_start\|>assistant\n(<think>\s*(</think>\s*)?)?'
        ) and len(string_split(prompt, '<|im_start|>')) = len(string_split(prompt, '<|im_end|>')) + 1
        then list_transform(
            string_split(prompt, '<|im_start|>')[2:-2],
            lambda turn: struct_pack(
                "role" := split_part(turn, chr(10), 1),
                "content" := split_part(substr(turn, length(split_part(turn, chr(10), 1)) + 2), '<|im_end|>', 1)
            )
        ) end
    when contains(prompt, '<|start_header_id|>') then
        case when regexp_full_match(
            prompt,
            '(<\|begin_of_text\|>)?(<\|start_header_id\|>(system|user|assistant|ipython|tool)<\|end_header_id\|>\n\n'
            '(?s:.*?)<\|eot_id\|>\s*)+<\|start_header_id\|>assistant<\|end_header_id\|>\s*'
        ) and len(string_split(prompt, '<|start_header_id|>')) = len(string_split(prompt, '<|eot_id|>')) + 1
        then list_transform(
            string_split(prompt, '<|start_header_id|>')[2:-2],
            lambda turn: struct_pack(
                "role" := replace(split_part(turn, '<|end_header_id|>', 1), 'ipython', 'tool'),
                "content" := split_part(
                    substr(turn, length(split_part(turn, '<|end_header_id|>', 1)) + 20), '<|eot_id|>', 1
                )
            )
        ) end
    when contains(prompt, '[INST]') then
        case when regexp_full_match(
            prompt,
            '(<s>)?\s*(\[SYSTEM_PROMPT\](?s:.*?)\[/SYSTEM_PROMPT\])?(\[INST\](?s:.*?)\[/INST\](?s:.*?)</s>\s*)*'
            '\[INST\](?s:.*?)\[/INST\]\s*'
        ) and len(string_split(prompt, '[INST]')) = len(string_split(prompt, '[/INST]'))
            and len(string_split(prompt, '</s>')) = len(string_split(prompt, '[INST]')) - 1
            and not regexp_matches(prompt, '<<SYS>>|\[AVAILABLE_TOOLS\]|\[TOOL_CALLS\]|\[TOOL_RESULTS\]|\[IMG\]')
        then list_concat(
            case when contains(prompt, '[SYSTEM_PROMPT]') then [struct_pack(
                "role" := 'system',
                "content" := split_part(split_part(prompt, '[SYSTEM_PROMPT]', 2), '[/SYSTEM_PROMPT]', 1)
            )] else [] end,
            list_filter(
                flatten(list_transform(
                    string_split(prompt, '[INST]')[2:],
                    lambda turn: [
                        struct_pack("role" := 'user', "content" := trim(split_part(turn, '[/INST]', 1))),
                        struct_pack(
                            "role" := 'assistant',
                            "content" := trim(split_part(split_part(turn, '[/INST]', 2), '</s>', 1))
                        )
                    ]
                )),
                lambda message: message.role = 'user' or message.content <> ''
            )
        ) end
end

-- name: oasst_answers
-- The assistant's messages of OASST trees: one row per answer, numbered in reading order (`part`), with its JSON (`node`),
-- its position in the tree (`place`), and the messages before it (`path`). The tree is read level by level; deleted messages
-- and their replies are left out.
create or replace temp macro oasst_answers() as table
with recursive nodes as (
    select object, row, raw -> '$.prompt' as node, [1] as place, cast([] as json[]) as path
    from records
    union all
    select
        object, row,
        unnest(replies) as node,
        list_append(place, generate_subscripts(replies, 1)) as place,
        list_append(path, json_object(
            'role', case node ->> '$.role' when 'prompter' then 'user' else node ->> '$.role' end,
            'content', node ->> '$.text'
        )) as path
    from (
        select
            *,
            list_filter(
                coalesce(try_cast(node -> '$.replies' as json[]), []),
                lambda reply: coalesce(reply ->> '$.deleted', 'false') <> 'true'
            ) as replies
        from nodes
        where len(place) < 200
    )
)
select
    object, row, node, place, path,
    row_number() over (partition by object, row order by place) - 1 as part
from nodes
where node ->> '$.role' = 'assistant'

-- name: provider_calls
-- Interactions of calls of another API than OpenAI's (wanted: anthropic, gemini, bedrock, ollama, completions, langsmith); one row
-- per answer. A prompt that a template rendered is split into messages.
create or replace temp macro provider_calls(wanted) as table
with calls as (
    select
        object,
        row,
        json_transform(call_of(raw, wanted), '{
            "code": "VARCHAR", "words": "VARCHAR", "skipped": "VARCHAR",
            "request_id": "VARCHAR", "alias_id": "VARCHAR", "trace_id": "VARCHAR", "written_ts": "VARCHAR",
            "workload": "VARCHAR", "client": "VARCHAR", "session_id": "VARCHAR", "user_id": "VARCHAR", "user_hash": "VARCHAR",
            "model": "VARCHAR", "provider": "VARCHAR", "served_model_digest": "VARCHAR",
            "messages": "JSON", "prompt": "VARCHAR", "tools": "JSON", "params": "JSON",
            "choices": [{"index": "INTEGER", "message": "JSON", "finish_reason": "VARCHAR"}], "finish_reason": "VARCHAR",
            "usage": {"prompt": "BIGINT", "completion": "BIGINT", "cached": "BIGINT", "reasoning": "BIGINT"},
            "error": "JSON", "logged_error": "JSON", "cache_hit": "BOOLEAN", "latency_ms": "DOUBLE", "ttft_ms": "DOUBLE",
            "cost": "DOUBLE"
        }') as call
    from records
),
choices as (
    select
        object, row, call,
        coalesce(error_text(call.error), error_text(call.logged_error)) as failure,
        case
            when call.prompt is null or call.messages is not null then call.messages
            else coalesce(
                to_json(templated_messages(call.prompt)),
                case when starts_with(ltrim(call.prompt), 'Human:') then to_json(list_filter(
                    transcript_messages(call.prompt),
                    lambda turn: (turn ->> '$.role') <> 'assistant' or (turn ->> '$.content') <> ''
                )) end,
                to_json([struct_pack("role" := 'user', "content" := call.prompt)])
            )
        end as messages,
        unnest(range(greatest(coalesce(len(call.choices), 0), 1))) as part
    from calls
)
select
    object, row, part, wanted as format, call.request_id as request_id, call.alias_id as alias_id, call.trace_id as trace_id,
    choice_number(call.choices, part) as choice_index,
    call.written_ts as written_ts, call.workload as workload_name, call.client as client, call.session_id as session_id,
    call.user_id as user_id,
    case when regexp_full_match(call.user_hash, '[0-9a-f]{64}') then call.user_hash end as user_hash,
    call.model as model, call.provider as provider, call.served_model_digest as served_model_digest, messages,
    call.tools as tools, call.params as params,
    call.choices[part + 1].message as completion,
    coalesce(call.choices[part + 1].finish_reason, call.finish_reason) as finish_reason,
    failure as error, call.cache_hit as cache_hit, call.usage.prompt as prompt_tokens,
    call.usage.completion as completion_tokens, call.usage.cached as cached_tokens, call.usage.reasoning as reasoning_tokens,
    call.latency_ms as latency_ms, call.ttft_ms as ttft_ms, call.cost as cost,
    case when failure is null then 'success' else 'failure' end as status,
    case
        when call.skipped is not null then 'skipped'
        when call.code is not null then call.code
        when messages is null then 'missing_field'
        when failure is null and call.choices[part + 1].message is null then 'missing_field'
    end as error_code,
    case
        when call.skipped is not null then call.skipped
        when call.code is not null then call.words
        when messages is null then 'the request has no messages'
        when failure is null and call.choices[part + 1].message is null then 'the response has neither an answer nor an error'
    end as message
from choices
