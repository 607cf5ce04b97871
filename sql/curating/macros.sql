-- name: one_line
-- A text in lower case with all white space as spaces.
create or replace temp macro one_line(text) as
    replace(replace(replace(lower(text), chr(10), ' '), chr(9), ' '), chr(13), ' ')

-- name: one_spacing
-- One line, trimmed, with single spaces. Most runs of spaces are short: two plain replacements end those of up to four, at a
-- fraction of the time of the regular expression that ends longer ones. trim reads a text character by character, so only texts
-- that need it are trimmed.
create or replace temp macro one_spacing(line) as
    case
        when regexp_matches(line, '^\p{Zs}') or regexp_matches(line, '\p{Zs}$') then trim(
            regexp_replace(replace(replace(line, '  ', ' '), '  ', ' '), '  +', ' ', 'g')
        )
        when contains(line, '     ') then regexp_replace(replace(replace(line, '  ', ' '), '  ', ' '), '  +', ' ', 'g')
        when contains(line, '  ') then replace(replace(line, '  ', ' '), '  ', ' ')
        else line
    end

-- name: grams_of
-- All runs of $size characters of a text, in order.
create or replace temp macro grams_of(text, size) as
    list_transform(range(1, length(text) - size + 2), lambda place: text[place : place + size - 1])

-- name: without_phrases
-- A text in lower case without greetings and polite phrases of languages that set no words apart by spaces: each is a space.
create or replace temp macro without_phrases(text) as
    regexp_replace(text, concat(
        '早上好|下午好|晚上好|你好|您好|请问|谢谢|麻烦|帮我|帮忙|我想要|我想|想要|我要|需要|我的|你们|我们|为什么|怎么样|怎么|怎样|如何|可不可以|可以|能不能|是不是|有没有',
        '|什么|多少|哪里|这个|那个|一个|一下|没有|不能|问题|知道|告诉|吗|呢|吧|您|我|你|的|了',
        '|お願い|教えて|下さい|何故|何処|私|안녕하세요|감사합니다|고맙습니다|어떻게|해주세요|싶어요|있나요|하나요|합니까|주세요',
        '|สวัสดี|ขอบคุณ|ครับ|ค่ะ|คะ|ช่วย|หน่อย|ต้องการ|อยาก|ทำไม|อย่างไร|ยังไง|เมื่อไหร่|ที่ไหน|ได้ไหม|ไหม|ได้|ไม่|ที่|แล้ว|ของ|และ|ให้|ขอ'
    ), ' ', 'g')

-- name: words_in
-- The words of a text in lower case that have 3 letters or more. Pieces stand for words that no spaces set apart: 2 characters of
-- Chinese, 3 of Thai, Lao, Khmer and Burmese. Japanese: 2 characters of Chinese, and words in katakana; hiragana is mostly grammar.
-- Korean: 2 characters of a word without its last one, which says its part in the sentence.
create or replace temp macro words_in(text) as
    case
        when length(text) = strlen(text) then regexp_extract_all(text, '\pL{3,}')
        else list_concat(
            regexp_extract_all(regexp_replace(
                text, '[\p{Han}\p{Hiragana}\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]+', ' ', 'g'
            ), '\pL{3,}|[\p{Katakana}ー]{2,}'),
            flatten(list_transform(regexp_extract_all(without_phrases(text), '\p{Han}{2,}'), lambda run: grams_of(run, 2))),
            flatten(list_transform(
                regexp_extract_all(without_phrases(text), '\p{Hangul}{2,}'),
                lambda run: grams_of(run[1 : greatest(length(run) - 1, 2)], 2)
            )),
            list_filter(
                flatten(list_transform(
                    regexp_extract_all(without_phrases(text), '[\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]{3,}'),
                    lambda run: grams_of(run, 3)
                )),
                lambda gram: not regexp_matches(gram, '^\pM')
            )
        )
    end

-- name: message_text
-- A message as one text: its content (a string, or the text of its parts) and its tool calls' names and arguments. `message`
-- has content, tool_calls and function_call as JSON.
create or replace temp macro message_text(message) as
    case
        when message.tool_calls is null and message.function_call is null and starts_with(message.content::varchar, '"')
            then message.content ->> '$'
        else concat_ws(
            ' ',
            case left(message.content::varchar, 1)
                when '"' then message.content ->> '$'
                when '[' then array_to_string(list_filter(message.content ->> '$[*].text', lambda part: part is not null), ' ')
            end,
            nullif(array_to_string(message.tool_calls ->> '$[*].function.name', ' '), ''),
            nullif(array_to_string(message.tool_calls ->> '$[*].function.arguments', ' '), ''),
            message.function_call ->> '$.name',
            message.function_call ->> '$.arguments'
        )
    end

-- name: message_identity
-- Hash by which two messages are equal: role, text without case and spacing, and parts other than text as they are. Ids of tool
-- calls, producers' names and empty fields are ignored: clients drop them when they repeat a history. `line` is the text from
-- one_line().
create or replace temp macro message_identity(role, line, content) as
    md5(
        coalesce(role, 'assistant') || chr(1) || one_spacing(line) || chr(1)
        || case
            when starts_with(content::varchar, '[') and len(list_filter(
                content ->> '$[*].type', lambda part: part <> 'text'
            )) > 0 then content::varchar
            else ''
        end
    )

-- name: conversation_of
-- A row's messages and its answer as one list; fields stay JSON. The JSON is parsed once. Anything that is not a list of
-- messages, or not a message, is left out.
create or replace temp macro conversation_of(messages, completion) as
    list_concat(
        coalesce(try(json_transform(
            messages, '[{"role": "VARCHAR", "content": "JSON", "tool_calls": "JSON", "function_call": "JSON"}]'
        )), []),
        case when try(json_type(completion)) = 'OBJECT' then [struct_update(json_transform(
            completion, '{"role": "VARCHAR", "content": "JSON", "tool_calls": "JSON", "function_call": "JSON"}'
        ), role := 'assistant')] else [] end
    )

-- name: conversation_texts
-- A row's messages and its answer as one list of role, content and text.
create or replace temp macro conversation_texts(messages, completion) as
    list_transform(
        conversation_of(messages, completion),
        lambda message: struct_pack(role := message.role, content := message.content, text := message_text(message))
    )

-- name: conversation_with_identities
-- conversation_texts with the hash that identifies each message. Each step is a list of its own, because DuckDB evaluates a
-- repeated expression in a lambda each time.
create or replace temp macro conversation_with_identities(messages, completion) as
    list_transform(
        list_transform(
            conversation_texts(messages, completion),
            lambda message: struct_pack(
                role := message.role, content := message.content, text := message.text, line := one_line(message.text)
            )
        ),
        lambda message: struct_pack(
            role := message.role, text := message.text,
            identity := message_identity(message.role, message.line, message.content)
        )
    )

-- name: new_messages
-- The new messages of a request: those after its last answer, without system prompt.
create or replace temp macro new_messages(prompt) as
    list_filter(
        prompt[
            len(prompt) + 2 - coalesce(nullif(list_position(
                list_transform(list_reverse(prompt), lambda message: message.role), 'assistant'
            ), 0), len(prompt) + 1) :
        ],
        lambda message: coalesce(message.role, '') not in ('system', 'developer')
    )

-- name: beginning
-- Session key of conversations without a session id: the client and the messages up to the first user message. Null where there
-- is no user message.
create or replace temp macro beginning(client, messages) as
    case when list_position(try_cast(messages as json) ->> '$[*].role', 'user') > 0 then
        'begins:' || md5(
            coalesce(client, '') || chr(1)
            || (try_cast(messages as json[])[1:list_position(try_cast(messages as json) ->> '$[*].role', 'user')])::varchar
        )
    end

-- name: shape_of
-- Prompt shape: what the session asks for (row_topics), or the tool whose result a turn brings, and a hash of client, instructions
-- (numbers aside) and tools. Rows of one shape share a quota when rows are sampled. A tool result names its tool itself, or the call
-- before it does; up to three results may follow one message.
create or replace temp macro shape_of(new_role, topic, messages, tools, client, instructions) as
    case
        when new_role in ('tool', 'function') then concat_ws(' ', 'result of', coalesce(
            messages ->> '$[#-1].name', messages ->> '$[#-2].tool_calls[0].function.name',
            messages ->> '$[#-3].tool_calls[0].function.name', messages ->> '$[#-4].tool_calls[0].function.name',
            'a tool'
        ))
        else coalesce(topic, '')
    end || '#' || md5(concat_ws(
        chr(1), coalesce(client, ''), regexp_replace(coalesce(instructions, ''), '[0-9]+', '0', 'g'),
        array_to_string(list_sort(try_cast(tools as json) ->> '$[*].function.name'), ',')
    ))[1:8]

-- name: request_of
-- What a request gave the chat template besides messages and tools, as JSON text; null if nothing. vLLM and SGLang take
-- chat_template_kwargs, documents and continue_final_message at the top level, clients of OpenAI's library send them as extra_body.
create or replace temp macro request_of(params) as
    nullif(cast(json_merge_patch('{}', json_object(
        'chat_template_kwargs', coalesce(params -> '$.chat_template_kwargs', params -> '$.extra_body.chat_template_kwargs'),
        'documents', coalesce(params -> '$.documents', params -> '$.extra_body.documents'),
        'reasoning_effort', params -> '$.reasoning_effort',
        'response_format', params -> '$.response_format',
        'continue_final_message', case when coalesce(
            params ->> '$.continue_final_message', params ->> '$.extra_body.continue_final_message') = 'true' then true end
    )) as varchar), '{}')

-- name: refused_in_words
-- Whether an answer is short and begins with a refusal. A narrow English pattern.
create or replace temp macro refused_in_words(answer) as
    length(answer) < 400 and regexp_matches(
        left(answer, 160),
        '^(i''?’?m (very |really |so )?sorry|sorry|i (sincerely )?apologi[sz]e|unfortunately|as an ai( language)?( model| assistant)?)?'
        || '[,.:;!]? ?(but |that |however,? )?i( ?''m|’m| am)? ?(can''?’?t|cannot|can not|not able to|unable to|won''?’?t( be able to)?)'
        || ' (be able to )?(help( you)?( with|[.,;]| *$)|assist( you)?( with|[.,;]| *$)|(comply|fulfill|fulfil|provide|answer|respond|discuss|engage|support|do (that|this))\b)',
        'i'
    )

-- name: labels_of
-- Labels of a pre-tokenized row: -100 for the prompt and for the spans in params.masked.
create or replace temp macro labels_of(prompt_ids, completion_ids, params) as
    list_concat(
        list_transform(prompt_ids, lambda id: -100),
        list_transform(
            completion_ids,
            lambda id, nth: case
                when len(list_filter(
                    coalesce(try_cast(json_extract(params, '$.masked') as integer[][]), []),
                    lambda span: nth > span[1] and nth <= span[2]
                )) > 0 then -100
                else id
            end
        )
    )
