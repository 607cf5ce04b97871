-- What makes two messages the same one: role, text in one case and spacing, and parts that are not text as they stand.
-- Ids of tool calls, names of producers and empty fields do not count: clients drop them when they repeat a history.
create or replace temp macro message_identity(message) as
    md5(
        coalesce(message ->> '$.role', 'assistant') || chr(1)
        || lower(trim(regexp_replace(message_text(message), '\s+', ' ', 'g'))) || chr(1)
        || case
            when json_type(message, '$.content') = 'ARRAY' and len(list_filter(
                message ->> '$.content[*].type', lambda part: part <> 'text'
            )) > 0 then message ->> '$.content'
            else ''
        end
    )
