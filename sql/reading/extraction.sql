-- name: quarantine_checked
-- One quarantine row per staged row that failed a check, with the start of its record.
insert into quarantined by name
select staged.object, staged.row, staged.error_code, staged.message, encode(lines.raw)[:4096] as raw
from staged
inner join lines using (object, row)
where staged.error_code <> 'skipped'

-- name: count_unread
-- Counts keys that nothing reads, and names that contradict each other, in the records that became rows.
insert into unread_keys
with told as (
    select object, row, unnest(unread) as words, 'unread' as kind from beside
    union all
    select object, row, unnest(clashes) as words, 'clash' as kind from beside
)
select
    object,
    kind,
    split_part(words, chr(9), 1) || case when kind = 'clash' then concat(chr(9), split_part(words, chr(9), 2)) else '' end as path,
    split_part(words, chr(9), case kind when 'clash' then 3 else 2 end) as other,
    count(*) as records
from told
semi join (select object, row from staged where error_code is null) as whole using (object, row)
group by all

-- name: quarantine_lines
-- Lines that are not JSON objects, as quarantine rows.
insert into quarantined by name
select
    object,
    row,
    case when is_json then 'wrong_type' else 'malformed_json' end as error_code,
    case when is_json then 'the record is JSON but no object' else 'the line is not valid JSON' end as message,
    encode(rtrim(raw, chr(10) || chr(13)))[:4096] as raw
from lines_without_record

-- name: records
-- Lines that are JSON objects: the records that a format's select reads. (Valid JSON that opens with a brace is an object: no
-- second parse.)
create or replace temp view records as
select object, row, raw
from lines
where regexp_matches(raw, '^\s*\{') and json_valid(raw)

-- name: beside
-- What records have beside the keys that their format reads: columns under other names, keys that nothing reads, and columns that
-- the source's `fields` names. A record whose keys the format reads all is not looked into.
create or replace temp table beside as
with looked as (
    select
        records.object,
        records.row,
        json_transform(
            beside_of(
                case
                    when list_contains($fielded, batch.source) then records.raw
                    else cast(json_merge_patch(records.raw, $without) as varchar)
                end,
                batch.source, $form
            ),
            '{
                "named": {"user": "VARCHAR", "session": "VARCHAR", "time": "VARCHAR", "id": "VARCHAR", "model": "VARCHAR",
                          "provider": "VARCHAR", "latency": "DOUBLE", "ttft": "DOUBLE", "cost": "DOUBLE", "prompt_tokens": "BIGINT",
                          "completion_tokens": "BIGINT", "status": "VARCHAR", "feedback": "VARCHAR", "feedback_name": "VARCHAR",
                          "workload": "VARCHAR"},
                "found": {"user": "VARCHAR", "session": "VARCHAR", "time": "VARCHAR", "id": "VARCHAR", "trace": "VARCHAR",
                          "model": "VARCHAR", "provider": "VARCHAR", "latency": "DOUBLE", "ttft": "DOUBLE", "cost": "DOUBLE",
                          "prompt_tokens": "BIGINT", "completion_tokens": "BIGINT", "cached_tokens": "BIGINT",
                          "reasoning_tokens": "BIGINT", "status": "VARCHAR", "cache_hit": "BOOLEAN", "feedback": "VARCHAR",
                          "feedback_name": "VARCHAR", "foreign_cost": "BOOLEAN"},
                "unread": ["VARCHAR"], "clashes": ["VARCHAR"]
            }'
        ) as told
    from records
    inner join batch using (object)
    where list_contains($fielded, batch.source) or $looks and (
        not list_has_all($read, try(json_keys(records.raw)))
        or contains(records.raw, '"metadata"') and not coalesce(
            list_has_all(
                $read, [concat('request.metadata.', key) for key in nullif(try(json_keys(records.raw, '$.request.metadata')), [])]
            ),
            false
        )
    )
)
select object, row, told.named as named, told.found as found, told.unread as unread, told.clashes as clashes
from looked

-- name: extracted
-- Interactions as a format's select reads them; columns that it does not name are null. A view, so that the text of a part is
-- scanned once and never copied.
-- placeholders: rows
create or replace temp view extracted as
select * from no_interactions
union all by name
({rows})

-- name: stage
-- Adds what all formats share: ids, hashes and checks. A row that fails a check gets an error_code and goes to quarantine.
-- interaction_id: a hash of source, the request's own id (with a digest of the record where ids are unique in their file only)
-- and the choice; without an id, or with one that names nothing, of content and time. It does not depend on what was read before.
insert into staged by name
with contexts as (
    select object, row, context_of(raw) as context
    from records
    where regexp_matches(raw, $needles)
),
shaped as (
    select
        extracted.* replace (
            coalesce(nullif(extracted.request_id, ''), beside.named.id) as request_id,
            -- an id of a data set is unique in its file only
            coalesce(
                beside.named.id, extracted.alias_id, case when extracted.record_digest is null then beside.found.id end
            ) as alias_id,
            coalesce(beside.named.workload, extracted.workload_name) as workload_name,
            coalesce(extracted.trace_id, beside.found.trace) as trace_id,
            coalesce(
                beside.named.time, case when moment(extracted.written_ts) is not null then extracted.written_ts end,
                beside.found.time, extracted.written_ts
            ) as written_ts,
            user_name(coalesce(beside.named.user, nullif(extracted.user_id, ''), beside.found.user)) as user_id,
            nullif(trim(coalesce(beside.named.session, nullif(extracted.session_id, ''), beside.found.session)), '') as session_id,
            coalesce(beside.named.model, extracted.model, beside.found.model) as model,
            coalesce(beside.named.provider, extracted.provider, beside.found.provider) as provider,
            coalesce(beside.named.latency, extracted.latency_ms, beside.found.latency) as latency_ms,
            coalesce(beside.named.ttft, extracted.ttft_ms, beside.found.ttft) as ttft_ms,
            coalesce(
                beside.named.cost, case when beside.found.foreign_cost is null then extracted.cost end, beside.found.cost
            ) as cost,
            coalesce(beside.named.prompt_tokens, extracted.prompt_tokens, beside.found.prompt_tokens) as prompt_tokens,
            coalesce(beside.named.completion_tokens, extracted.completion_tokens, beside.found.completion_tokens)
                as completion_tokens,
            coalesce(extracted.cached_tokens, beside.found.cached_tokens) as cached_tokens,
            coalesce(extracted.reasoning_tokens, beside.found.reasoning_tokens) as reasoning_tokens,
            coalesce(extracted.cache_hit, beside.found.cache_hit) as cache_hit,
            case
                when beside.named.status = 'failure' then 'failure'
                -- of a word such as failed beside a whole answer, nobody knows what failed
                when extracted.status = 'success' and beside.found.status = 'failure' and beside.named.status is null
                    and finish_reason_of(extracted.finish_reason) in ('stop', 'tool_calls') then 'success'
                when extracted.status = 'success' then coalesce(beside.named.status, beside.found.status, 'success')
                else extracted.status
            end as status,
            case
                when extracted.finish_reason in ('stop', 'tool_calls', 'length') then extracted.finish_reason
                else finish_reason_of(extracted.finish_reason)
            end as finish_reason,
            case
                when contexts.context is null then parameters(extracted.params)
                else json_merge_patch(
                    coalesce(cast(parameters(extracted.params) as varchar), '{}'),
                    json_object('context', cast(contexts.context as json))
                )
            end as params,
            called(extracted.messages) as messages,
            case when extracted.status = 'text' then extracted.completion else called(extracted.completion) end as completion
        ),
        batch.source, batch.uri, batch.fallback_ts,
        coalesce(batch.workloads[coalesce(beside.named.workload, extracted.workload_name)], $workload) as workload
    from extracted
    inner join batch using (object)
    -- a line of spans holds several requests
    left join beside on beside.object = extracted.object and beside.row = extracted.row
    left join contexts on contexts.object = extracted.object and contexts.row = extracted.row and extracted.format <> 'otlp'
),
-- the model's reasoning is kept in a column of its own, not in the answer
examined as (
    select
        *,
        moment(written_ts) as read_ts,
        coalesce(contains(completion, '<think>') and regexp_matches(
            completion ->> '$.content', '^\s*<think>.*</think>', 's'
        ), false) as opens_with_reasoning,
        coalesce((opens_with_reasoning or contains(completion, '"reasoning')) and json_type(completion) = 'OBJECT', false)
            as has_reasoning
    from shaped
),
split_reasoning as (
    select
        * replace (
            case
                when has_reasoning then coalesce(
                    reasoning, completion ->> '$.reasoning_content', completion ->> '$.reasoning',
                    nullif(trim(regexp_extract(
                        completion ->> '$.content', '^\s*<think>(.*?)</think>', 1, 's'
                    ), chr(10) || ' '), '')
                )
                else reasoning
            end as reasoning,
            case
                when has_reasoning then json_merge_patch(
                    completion,
                    '{"reasoning_content": null, "reasoning": null, "reasoning_details": null}',
                    case when opens_with_reasoning then to_json(struct_pack("content" := regexp_replace(
                        completion ->> '$.content', '^\s*<think>.*?</think>\s*', '', 's'
                    ))) else '{}' end
                )
                else completion
            end as completion
        )
    from examined
),
projected as (
    select
        *,
        json_transform(messages, '[{
            "role": "VARCHAR", "name": "VARCHAR", "content": "JSON", "tool_calls": "JSON", "tool_call_id": "VARCHAR",
            "function_call": "JSON"
        }]') as request_messages,
        json_transform(completion, '{
            "role": "VARCHAR", "content": "JSON", "tool_calls": "JSON", "function_call": "JSON", "refusal": "VARCHAR"
        }') as answer
    from split_reasoning
),
hashed as (
    select
        *,
        sha256(concat(
            cast(to_json(request_messages) as varchar), chr(31), tools, chr(31), cast(to_json(answer) as varchar),
            case when status = 'tokens' then concat(
                chr(31), cast(prompt_token_ids as varchar), cast(completion_token_ids as varchar), params
            ) end
        )) as content_sha256,
        len(request_messages) as message_count,
        len(list_filter(request_messages, lambda each: each.role is null)) as messages_without_role,
        -- JSON text of a string, or of a list of objects or strings, by its first characters
        len(list_filter(
            list_append(list_transform(request_messages, lambda each: each.content), answer.content),
            lambda content: not regexp_matches(content, '^("|\[[{"\]])')
        )) as odd_contents
    from projected
),
tested as (
    select
        *,
        coalesce(read_ts, fallback_ts) as ts,
        case
            when error_code is distinct from 'skipped' and (placeholder_in(messages) or placeholder_in(completion))
                then struct_pack(code := 'skipped', text := 'placeholder')
            when error_code is not null then struct_pack(code := error_code, text := message)
            when coalesce(message_count, 0) = 0 and coalesce(status, '') not in ('text', 'tokens')
                and not (status = 'failure' and messages = '[]')
                then struct_pack(code := 'wrong_type', text := 'messages is not a list of messages')
            when messages_without_role > 0
                then struct_pack(code := 'wrong_type', text := 'a message has no role')
            when json_type(completion) <> 'OBJECT'
                then struct_pack(code := 'wrong_type', text := 'the answer is not a message object')
            when odd_contents > 0
                then struct_pack(code := 'wrong_type', text := 'a content is neither text nor a list of parts')
            -- an answer may be a list of messages on purpose
            when not $is_mapped and (
                unread_in(messages, 'messages|choices|contents') or unread_in(completion, 'choices|contents')
            ) then struct_pack(
                code := 'wrong_type', text := 'a content is a structure in a text (a body, or messages of LangChain or Python)'
            )
            when completion is null and status = 'success'
                then struct_pack(code := 'missing_field', text := 'the answer has no message')
            when read_ts is null and time_problem(written_ts) is not null
                then struct_pack(code := 'wrong_type', text := time_problem(written_ts))
        end as problem
    from hashed
)
select
    object, row, part, problem.code as error_code, problem.text as message, workload,
    cast(ts as date) as dt,
    sha256(concat_ws(
        chr(31), source, coalesce('id:' || case when record_digest is not null or not names_nothing(request_id) then request_id end || coalesce(chr(31) || record_digest, ''), concat('content:', content_sha256, ':', epoch_us(read_ts))),
        choice_index
    )) as interaction_id,
    request_id,
    nullif(alias_id, request_id) as alias_id,
    trace_id, choice_index, ts, source, format as source_format, uri as source_uri, row as source_row, client, session_id,
    coalesce(user_hash, case when user_id <> '' then sha256(concat($user_hash_key, chr(31), user_id)) end) as user_hash,
    model, provider, served_model_digest, messages, tools, case
        when beyond_messages(prompt_tokens, messages, tools, params) then json_merge_patch(
            coalesce(cast(params as varchar), '{}'),
            json_object('context', json_object('elsewhere', printf(
                '%d prompt tokens for %d bytes of messages', prompt_tokens, strlen(messages)
            )))
        )
        else params
    end as params, completion, reasoning, prompt_token_ids, completion_token_ids, finish_reason, error, cache_hit,
    prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens, latency_ms, ttft_ms, cost, status, content_sha256,
    workload_name, release, queue_ms, drafts, draft_tokens, accepted_tokens
from tested

-- name: extracted_feedback
-- Feedback as a format's select reads it; columns that it does not name are null. extra: the feedback came inside an
-- interaction's record and is not a record of its own.
-- Where the format's select has none, feedback beside what the format reads is about the answer, or all answers of a conversation.
-- labelled: a data set's `label`, `kto_tag` or the like is feedback on the last answer, but for a word that a short answer repeats: a
-- class. A number may be a thumb or a class: the numbers of all records of the source tell (graded_feedback), so it has another name.
-- placeholders: rows, turns, labelled
create or replace temp view extracted_feedback as
with labels as (
    select
        object, row,
        coalesce(
            raw ->> '$.kto_tag', raw ->> '$.label', raw ->> '$.Label', raw ->> '$.kto_label', raw ->> '$.is_desirable',
            raw ->> '$.desirable'
        ) as label,
        label_of(label) as written_value,
        openai_messages(coalesce(raw -> '$.messages', raw -> '$.conversations', raw -> '$.conversation'), 'user')[-1] as last_message
    from records
    where {labelled} and regexp_matches(raw, '"(kto_tag|[lL]abel|kto_label|(is_)?desirable)"\s*:')
),
own as (
    select * from no_feedback
    union all by name
    ({rows})
    union all by name
    select
        object, row, staged.part, true as extra, staged.part as about_part,
        if(try_cast(written_value as double) is null, 'preference', concat('label of ', staged.source)) as name, written_value,
        'label' as source
    from labels
    inner join staged using (object, row)
    cross join lateral (select coalesce(try(staged.completion ->> '$.content'), staged.completion) as answer)
    where written_value is not null and staged.completion is not null and staged.error_code is null
        and coalesce(last_message ->> '$.role', 'assistant') = 'assistant'
        and not coalesce(len(answer) <= 40 and contains(
            concat(' ', regexp_replace(lower(answer), '[\s[:punct:]]+', ' ', 'g'), ' '),
            concat(' ', regexp_replace(lower(trim(label)), '[\s[:punct:]]+', ' ', 'g'), ' ')
        ), false)
        and coalesce(last_message ->> '$.weight', '1') not in ('0', '0.0')
    qualify staged.part = max(staged.part) over (partition by object, row)
)
select
    own.* replace (
        case when extra then own.request_id else coalesce(named.id, own.request_id) end as request_id,
        case when extra and own.session_id is null then null else trim(coalesce(named.session, own.session_id)) end as session_id,
        case when extra then own.written_value else coalesce(named.feedback, own.written_value) end as written_value,
        coalesce(named.user, own.user_id) as user_id,
        coalesce(named.workload, own.workload_name) as workload_name,
        coalesce(named.time, own.written_ts) as written_ts
    )
from own
left join beside on beside.object = own.object and beside.row = own.row
union all by name
select
    beside.object, beside.row, staged.part, true as extra, staged.part as about_part,
    case when beside.named.feedback is not null then beside.named.feedback_name else beside.found.feedback_name end as name,
    coalesce(beside.named.feedback, beside.found.feedback) as written_value,
    'log' as source
from beside
inner join staged using (object, row)
where coalesce(beside.named.feedback, beside.found.feedback) is not null
    and staged.error_code is null
    and (staged.part = 0 or {turns})
    and (
        beside.named.feedback is not null
        or not exists (select 1 from own where own.object = beside.object and own.row = beside.row)
    )

-- name: faulty_records
-- Records that their format could not extract.
with faulty as (
    select object, row from staged where error_code <> 'skipped'
    union
    select object, row from checked_feedback where error_code is not null and not extra
    union
    select object, row from pair_sides where side is null
)
select object, row, raw
from lines
semi join faulty using (object, row)

-- name: lines_without_record
-- Lines that are not JSON objects.
create or replace temp table lines_without_record as
select object, row, raw, json_valid(raw) as is_json
from lines
where not (regexp_matches(raw, '^\s*\{') and json_valid(raw))

-- name: surrogate_lines
-- Lines that are not JSON and contain the escape of a surrogate: a lone surrogate may be all that is wrong.
select object, row, raw
from lines_without_record
where not is_json and regexp_matches(raw, '\\u[dD][89a-fA-F]')

-- name: delete_rerouted
-- Deletes the rows of lines that will be read again. The table is a name in our code, never input.
-- placeholders: table
delete from {table}
where (object, row) in (select (object, row) from rerouted)

-- name: delete_faulty
-- Deletes rows that have gone to quarantine.
delete from staged where error_code is not null

-- name: insert_skipped
-- Records that a format skips: error_code is 'skipped', the rule is in message.
insert into skipped
select object, row, $workload as workload, message as rule
from staged
where error_code = 'skipped'

-- name: parquet_records
-- Rows of a Parquet batch as JSON text. Null fields are left out; a text that is JSON of a list or object becomes that list or
-- object in the columns where a format expects one. $later, $first, $only: patterns of a null field after another field, before
-- others, alone. $structures: columns that may hold any structure. $conversations: columns that may hold messages only.
with written as (
    select cast(to_json(batch) as varchar) as raw from batch
),
filled as (
    select
        regexp_replace(regexp_replace(regexp_replace(raw, $later, '', 'g'), $first, '{', 'g'), $only, '{}', 'g') as raw
    from written
),
structured as (
    select
        list_reduce(
            list_concat([raw], $structures),
            lambda row, name: case
                when regexp_matches(row ->> concat('$."', name, '"'), '^\s*[\[{]')
                    and json_valid(row ->> concat('$."', name, '"'))
                    then cast(json_merge_patch(row, json_object(name, cast(row ->> concat('$."', name, '"') as json))) as varchar)
                else row
            end
        ) as raw
    from filled
)
select
    list_reduce(
        list_concat([raw], $conversations),
        lambda row, name: case
            when regexp_matches(row ->> concat('$."', name, '"'), '^\s*(\[\s*)?\{\s*"(role|content|from|value)"')
                and json_valid(row ->> concat('$."', name, '"'))
                then cast(json_merge_patch(row, json_object(name, cast(row ->> concat('$."', name, '"') as json))) as varchar)
            else row
        end
    ) as raw
from structured
