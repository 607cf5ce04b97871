-- Session key of conversations without a session id: the client and the messages up to the first user message. Null where there
-- is no user message.
-- makes: macro beginning(client, messages)
create or replace temp macro beginning(client, messages) as
    case when list_position(try_cast(messages as json) ->> '$[*].role', 'user') > 0 then
        'begins:' || md5(
            coalesce(client, '') || chr(1)
            || (try_cast(messages as json[])[1:list_position(try_cast(messages as json) ->> '$[*].role', 'user')])::varchar
        )
    end
