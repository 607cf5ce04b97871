-- Raw rows of the days to clean, or one part of their sessions, without rows that retention emptied. Where a log has no session
-- id, requests of one client that begin alike (same instructions, same first user message) share a session: a conversation
-- repeats its beginning with every turn.
-- needs: beginning(), interactions, request_of()
-- parameters: $part, $parts
-- makes: temp table arrived (*, request)
create or replace temp table arrived as
with placed as (
    select
        * replace (
            case
                when session_id is not null then session_id
                else coalesce(beginning(client, messages), 'alone:' || interaction_id)
            end as session_id
        )
    from interactions
    where emptied is null
)
select * exclude (prompt_token_ids, completion_token_ids, params, emptied), request_of(params) as request
from placed
where hash(session_id) % $parts = $part
