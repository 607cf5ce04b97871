-- Drops rows with tool calls that no client could have run: a model would learn broken calls from them.
-- needs: cleaned
-- parameters: $drop_broken
-- makes: temp table failed_tools (interaction_id, place, rule, detail)
create or replace temp table failed_tools as
with calling as (
    select interaction_id, messages, tools, completion
    from cleaned
    where $drop_broken and (contains(completion, '"tool_calls"') or contains(messages, '"tool"'))
      and try(json_type(completion)) = 'OBJECT' and try(json_type(messages)) = 'ARRAY'
),
calls as (
    select
        interaction_id,
        coalesce(try_cast(tools as json) ->> '$[*].function.name', [])
            || coalesce(try_cast(tools as json) ->> '$[*].name', []) as request_tools,
        unnest(cast(completion -> '$.tool_calls' as json[])) as call
    from calling
    where json_type(completion, '$.tool_calls') = 'ARRAY'
),
bad_calls as (
    select
        interaction_id,
        call ->> '$.function.name' as name,
        case
            when coalesce(call ->> '$.type', 'function') <> 'function' then null
            when coalesce(name, '') = '' then 'a call without a name'
            when coalesce(try(json_type(call ->> '$.function.arguments')), '') <> 'OBJECT'
                then 'arguments of ' || left(name, 64) || ' are no JSON object'
            when len(request_tools) > 0 and not list_contains(request_tools, name)
                then left(name, 64) || ' is none of the request''s tools'
        end as detail
    from calls
),
turns as (
    select
        interaction_id,
        unnest(cast(messages as json[])) as message,
        generate_subscripts(cast(messages as json[]), 1) as position
    from calling
    where contains(messages, '"tool"')
),
parsed_turns as (
    select
        interaction_id, position,
        message ->> '$.role' as role,
        message ->> '$.tool_call_id' as answered_id,
        message ->> '$.tool_calls[*].id' as call_ids
    from turns
),
histories as (
    select
        *,
        flatten(list(coalesce(call_ids, [])) over (partition by interaction_id order by position)) as call_ids_so_far,
        lag(role) over (partition by interaction_id order by position) as before,
        lag(call_ids) over (partition by interaction_id order by position) as call_ids_before
    from parsed_turns
),
orphans as (
    select distinct interaction_id, 'a tool''s message answers no call before it' as detail
    from histories
    where role = 'tool' and case
        when answered_id is not null and len(call_ids_so_far) > 0 then not list_contains(call_ids_so_far, answered_id)
        else coalesce(before, '') not in ('assistant', 'tool') or len(call_ids_so_far) = 0 and answered_id is not null
    end
)
select interaction_id, 2 as place, 'broken_tool_call' as rule, min(detail) as detail
from (
    select interaction_id, detail from bad_calls where detail is not null
    union all
    select interaction_id, detail from orphans
)
group by interaction_id
