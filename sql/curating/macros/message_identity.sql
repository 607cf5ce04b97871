-- Hash by which two messages are equal: role, text without case and spacing, and parts other than text as they are. Ids of tool
-- calls, producers' names and empty fields are ignored: clients drop them when they repeat a history. `line` is the text from
-- one_line().
-- needs: one_spacing()
-- makes: macro message_identity(role, line, content)
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
