-- The raw rows of the days at hand. Where a log has no session id, requests that begin alike (the same client, the same
-- instructions and first message of the user) share a session: a conversation repeats its beginning with every turn.
create or replace temp view conversations as
with beginnings as (
    select
        *,
        try_cast(messages as json[]) as prompt,
        list_position(list_transform(prompt, lambda message: message ->> '$.role'), 'user') as first_user
    from interactions
)
select
    * exclude (prompt, first_user, session_id),
    coalesce(
        session_id,
        case when first_user > 0 then
            'begins:' || md5(coalesce(client, '') || chr(1) || cast(prompt[1:first_user] as varchar))
        end,
        'alone:' || interaction_id
    ) as session_id
from beginnings
