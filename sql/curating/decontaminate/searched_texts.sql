-- Every message of the rows to search, without system prompts. Text with JSON escapes (a tool call, a record in a prompt) is
-- listed a second time with the escapes decoded: "\nthe" is not the word "nthe". This is done by pattern, since JSON inside
-- prose does not parse as a document.
-- needs: conversation_of(), message_text(), searched_rows
-- makes: rows (row_id, text)
with conversations_read as (
    select row_id, conversation_of(messages, completion) as conversation
    from searched_rows
),
messages as (
    select row_id, unnest(conversation) as message
    from conversations_read
),
texts as (
    select row_id, message_text(message) as text
    from messages
    where coalesce(message.role, '') not in ('system', 'developer')
),
unescaped as (  -- except \u00e9, which the JSON reader decodes below if the rest of the text is valid JSON
    select row_id, regexp_replace(regexp_replace(text, '\\["\\/bfnrt]', ' ', 'g'), '["\x00-\x1f]', ' ', 'g') as text
    from texts
    where contains(text, '\')
)
select row_id, text from texts
union all
select row_id, case when contains(text, '\u') then coalesce(try_cast('"' || text || '"' as json) ->> '$', text) else text end
from unescaped
