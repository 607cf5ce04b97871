-- name: plain_moment
-- A time in the form of an epoch (seconds, milli-, micro- or nanoseconds) or of ISO 8601 as a timestamp. Null outside the years 2000
-- to 2100.
create or replace temp macro plain_moment(written) as
case
    when try_cast(written as double) between 946684800 and 4102444800
        then make_timestamptz(cast(try_cast(written as double) * 1e6 as bigint))
    when try_cast(written as double) between 946684800e3 and 4102444800e3
        then make_timestamptz(cast(try_cast(written as double) * 1e3 as bigint))
    when try_cast(written as double) between 946684800e6 and 4102444800e6
        then make_timestamptz(cast(try_cast(written as double) as bigint))
    when try_cast(written as double) between 946684800e9 and 4102444800e9
        then make_timestamptz(cast(try_cast(written as double) / 1e3 as bigint))
    when try_cast(written as timestamptz) between timestamptz '2000-01-01' and timestamptz '2100-01-01'
        then try_cast(written as timestamptz)
end

-- name: moment
-- A logged time as a timestamp, in any form that loggers write. Null for a form that is not known, and outside the years 2000 to
-- 2100.
create or replace temp macro moment(written) as
case when written is not null then coalesce(plain_moment(written), plain_moment(moment_of(written))) end

-- name: time_problem
-- The reason why a logged time cannot be used, with the time; null for a time that can, and for none: a text without a time, and
-- the zero of epochs, Go and MySQL.
create or replace temp macro time_problem(written) as
case
    when written is null or moment(written) is not null or regexp_full_match(
        trim(coalesce(moment_of(written), written), ' "' || chr(9) || chr(10) || chr(13)),
        '(?i)|[-+]?0*(\.0*)?|-|-1|-62135596800|null|none|nan|nat|nil|n/a|undefined|unknown|\{\}|\[\]|(0000|0001|1970-01-01).*'
    ) then null
    when try_cast(written as double) is not null or try_cast(coalesce(moment_of(written), written) as timestamptz) is not null
        then 'the time is not one between the years 2000 and 2100: ' || left(written, 60)
    else 'the format of the time is not known: ' || left(written, 60)
end

-- name: logged_time
-- Of the times that a record names, the first that is understood; else the first that says anything.
create or replace temp macro logged_time(one, two, three := null, four := null, five := null) as
coalesce(
    case when moment(one) is not null then one end, case when moment(two) is not null then two end,
    case when moment(three) is not null then three end, case when moment(four) is not null then four end,
    case when moment(five) is not null then five end,
    nullif(one, ''), nullif(two, ''), nullif(three, ''), nullif(four, ''), nullif(five, '')
)

-- name: names_nothing
-- Whether an id is one that many requests have: Ollama draws chatcmpl-0 to chatcmpl-998, and others log a constant in place of none.
create or replace temp macro names_nothing(id) as
regexp_full_match(id, '(?i)(chat)?cmpl-\d{1,3}|0|-|none|null|nil|undefined|unknown|n/a|[0-]{36}')

-- name: record_digest
-- Distinguishes records with one id: ids of data sets often restart in each file. Equal records have equal digests in every
-- file.
create or replace temp macro record_digest(raw) as md5(trim(raw, ' ' || chr(9) || chr(10) || chr(13)))

-- name: error_text
-- The error text of a record; null where the field means no error: null, "", false, 0, {}, or an object of these.
create or replace temp macro error_text(error_json) as
case json_type(error_json)
    when 'OBJECT' then case
        when len(list_filter(
            json_extract(error_json, '$.*'), lambda each: cast(each as varchar) not in ('null', '""', '{}', '[]', 'false', '0')
        )) > 0 then coalesce(nullif(error_json ->> '$.message', ''), cast(error_json as varchar))
    end
    when 'ARRAY' then case when json_array_length(error_json) > 0 then cast(error_json as varchar) end
    when 'VARCHAR' then case when lower(trim(error_json ->> '$')) not in ('', 'none', 'null', 'false') then error_json ->> '$' end
    else case when cast(error_json as varchar) not in ('null', 'false', '0') then cast(error_json as varchar) end
end

-- name: choice_number
-- The index of a choice as logged, unless two choices have the same one; then its position.
create or replace temp macro choice_number(choices, part) as
case
    when len(choices) > 1 and len(list_distinct(list_transform(choices, lambda each: each.index))) < len(choices) then part
    else coalesce(choices[part + 1].index, part)
end

-- name: parameters
-- A request's sampling parameters, without user names, secrets, headers and what other columns hold (tools, messages).
create or replace temp macro parameters(params) as
case
    when regexp_matches(
        lower(cast(params as varchar)),
        'user|safety|cache_key|metadata|headers|extra_|api_|secret|passw|credential|auth|token"|access_key|litellm|proxy|'
        '"tools"|"functions"|"messages"|"input"|"prompt"|"instructions"|"system|"prediction"|"contents"'
    ) then json_merge_patch(cast(params as varchar), to_json(map_from_entries(list_transform(
        list_filter(json_keys(params), lambda name: regexp_full_match(
            lower(name),
            '(.*[_-])?(user|user_?(id|name|email)|username)|safety_identifier|prompt_cache_key|.*metadata|.*headers?|'
            'extra_(body|query|params)|.*(api[_-]?(key|base)|secret|passw(or)?d|credentials?|authorization|access[_-]?key).*|'
            '(.*[_-])?(auth|access|ad|session|bearer|refresh|security|hf|api|id)[_-]?token|token|auth|'
            '(litellm|optional)_(params|call_id)|proxy_server_request|'
            'tools|functions|messages|input|prompt|instructions|system|system_?instructions?|prediction|contents'
        )),
        lambda name: struct_pack(k := name, v := cast(null as varchar))
    ))))
    else params
end

-- name: served_digest
-- The digest of the target in the fingerprint of a release (model_ops/serving/service.py); null for what other servers write.
create or replace temp macro served_digest(said) as
nullif(regexp_extract(said, '^millrace-[0-9a-f]{12}-([0-9a-f]{64})$', 1), '')

-- name: served_release
-- The release in the fingerprint of its server (model_ops/serving/service.py); null for what other servers write.
create or replace temp macro served_release(said) as
nullif(regexp_extract(said, '^millrace-([0-9a-f]{12})-[0-9a-f]{64}$', 1), '')

-- name: beyond_messages
-- Whether the provider counted prompt tokens that the record has no text for. No tokenizer makes more tokens than bytes, and most
-- make a fourth; 500 are for the template, and 500 for the instructions that come with tools. Pictures, files and hidden thoughts
-- count tokens without text; an earlier response, or text that is known to be elsewhere, explains them.
create or replace temp macro beyond_messages(prompt_tokens, messages, tools, params) as
coalesce(
    prompt_tokens > 500 + strlen(messages) + coalesce(strlen(tools) + 500, 0) + coalesce(strlen(params ->> '$.response_format'), 0)
    and coalesce(
        params ->> '$.context.elsewhere', params ->> '$.context.previous_response_id', params ->> '$.context.hidden'
    ) is null
    and not regexp_matches(messages, '"type"\s*:\s*"[a-z_]*(image|file|audio|video|document)|sha256:'),
    false
)

-- name: placeholder_in
-- Whether a text of a message is what a logger wrote in place of it: the words of LiteLLM, LM Studio, OpenInference, Sentry, Datadog,
-- Logfire, Langfuse and others, alone, or the mark of a cut in a text that does not quote it.
create or replace temp macro placeholder_in(said) as
coalesce(regexp_matches(
    -- the input of a call may be such a word
    if(regexp_matches(said, '"(input|args)"\s*:\s*\{'), regexp_replace(said, '"(input|args)"\s*:\s*\{[^{}]*\}', '', 'g'), said),
    '(?i)"(content|text)"\s*:\s*"\s*(redacted-by-litellm|default-message-value|\W{0,3}redacted\W{0,3}|\*{3,}|'
    '[\[<({*_]{1,3}\s*((data|content|message|prompt|text|input|output|completion|fully|value)[ _-]?){0,2}'
    '(redacted|filtered|masked|scrubbed|hidden|removed|omitted|sanitized|not logged|withheld)(\s[^"]{0,80})?[\])>}*_]{1,3}'
    '|\[object object\]|\[this value has been dropped because [^"]*|(<|\\u003c)truncated due to size exceeding limit(>|\\u003e))\s*"'
    '|(:\s*"|[^`''"“‘(])\.\.\.\s?((<|\\u003c)truncated in logs|\(litellm_truncated )'
    '|(:\s*"|[^\s`''"(])((<|\\u003c)truncated in logs(>|\\u003e)|\(litellm_truncated \d+ chars\))[\s.]*"'
), false)

-- name: unread_in
-- Whether a whole text of a message is a structure that its producer wrote as text: a body or a list of messages, LangChain's objects,
-- or Python's own notation of them. lists: keys of a body's lists of objects.
create or replace temp macro unread_in(said, lists) as
coalesce(regexp_matches(
    said,
    '"(content|text)"\s*:\s*"(\\[nt]|\s|\\")*(\[\s*)*(\{\s*\\+"lc\\+"\s*:\s*1|\{\s*(\\+"|'')(' || lists || ')(\\+"|'')\s*:\s*\[\s*\{'
    '|\{\s*(\\+"|'')candidates(\\+"|'')\s*:\s*\[\s*\{\s*(\\+"|'')(content|index|finish|safety|citation)'
    '|\[\s*\{\s*(\\+"|'')role(\\+"|'')\s*:\s*(\\+"|'')(user|system|assistant|developer)\b'
    '|(Human|AI|System|ChatCompletion|Chat)Message(Chunk)?\(|ChatCompletion\(|content=(''|\\")[^"]*(additional|response)_)'
), false)

-- name: user_name
-- A user's id as it is hashed (user_of in resources/digests/user_hash.py).
create or replace temp macro user_name(id) as case when regexp_full_match(id, '[!-?A-~]*') then id else user_of(id) end

-- name: is_weak_id
-- Whether an id may be of many requests: it is short, or words, a template's placeholder, or words and a small number or a time.
create or replace temp macro is_weak_id(id) as
length(id) < 8 or not regexp_matches(id, '\d') or regexp_matches(
    id, '(?i)[{}<>$%]|^([a-z]+[-_.:])*\d{1,13}$|(^|[^a-z])(mock|fake|dummy|test|example|sample|string|default|placeholder)([^a-z]|$)'
)
