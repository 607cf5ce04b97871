-- Raw rows of the days to clean, or one part of their sessions, without rows that retention emptied. Messages begin with those of
-- the earlier response that the request names. context: what of the prompt the log does not have. Where a log has no session
-- id, requests of one client that begin alike (same instructions, same first user message) share a session: a conversation
-- repeats its beginning with every turn.
-- needs: beginning(), chains, interactions, request_of()
-- parameters: $part, $parts
-- makes: temp table arrived (*, request)
create or replace temp table arrived as
with whole as (
    select
        interactions.* replace (
            case
                when earlier is null then messages
                when coalesce(params -> '$.context.has_instructions', 'false') = 'true' then cast(to_json(list_concat(
                    cast(messages as json[])[:1], earlier, cast(messages as json[])[2:]
                )) as varchar)
                else cast(to_json(list_concat(earlier, cast(messages as json[]))) as varchar)
            end as messages
        ),
        coalesce(
            params ->> '$.context.elsewhere',
            case when earlier is null and (params ->> '$.context.previous_response_id') is not null then 'previous_response_id' end
        ) as context,
        len(earlier) as earlier_turns
    from interactions
    left join chains using (interaction_id)
    where emptied is null
),

placed as (
    select
        * replace (
            case
                when session_id is not null then session_id
                else coalesce(beginning(client, messages), 'alone:' || interaction_id)
            end as session_id
        )
    from whole
)
select * exclude (prompt_token_ids, completion_token_ids, params, emptied), request_of(params) as request
from placed
where hash(session_id) % $parts = $part
