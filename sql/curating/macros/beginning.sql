-- A name for the conversations of one client that begin with the same messages up to the user's first; null where no user speaks.
create or replace temp macro beginning(client, messages) as
    case when list_position(try_cast(messages as json) ->> '$[*].role', 'user') > 0 then
        'begins:' || md5(
            coalesce(client, '') || chr(1)
            || (try_cast(messages as json[])[1:list_position(try_cast(messages as json) ->> '$[*].role', 'user')])::varchar
        )
    end
