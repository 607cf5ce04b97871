-- What makes two messages the same one: role, text in one case and spacing, and parts that are not text as they stand.
-- Ids of tool calls, names of producers and empty fields do not count: clients drop them when they repeat a history.
-- `line` is the message's text as one_line() makes it.
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
