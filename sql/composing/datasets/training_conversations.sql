-- Conversations to train on: rows that no other row contains. An assistant message has weight 1 if its own interaction was kept
-- by curation, else 0 (context only). Reasoning that the model gave with an earlier answer and that later requests leave out is
-- learnt with that answer and is no part of the later context (learnt_reasoning); so is the request of that answer where it
-- differs (learnt_request). An answer that ended at the token limit has learnt_cut. Where several rows end in the same message
-- (exact copies that curation let through), the first is listed in its place and the others come after the row's own id.
-- needs: contained_rows, curated
-- makes: temp table training_conversations (curated.*, chat, interaction_ids)
create or replace temp table training_conversations as
with spread as (
    select
        curated.interaction_id,
        unnest(cast(messages as json[])) as message,
        generate_subscripts(cast(messages as json[]), 1) as position
    from curated
    where interaction_id not in (select interaction_id from contained_rows)
),
carried_rows as (
    select container_id, position, list(interaction_id order by interaction_id) as carried_ids
    from contained_rows
    group by container_id, position
),
weighed as (
    select
        spread.interaction_id, spread.position, carried_rows.carried_ids,
        case
            when message ->> '$.role' = 'assistant' then json_merge_patch(message, json_object(
                'weight', if(carried_rows.carried_ids is null, 0, 1),
                'learnt_reasoning', nullif(trim(said.reasoning), ''),
                'learnt_cut', nullif(said.was_cut, false),
                'learnt_request', case when said.request is distinct from containing.request then
                    coalesce(cast(said.request as json), if(said.interaction_id is null, null, '{}'::json)) end
            ))
            else message
        end as message
    from spread
    join curated as containing on containing.interaction_id = spread.interaction_id
    left join carried_rows on carried_rows.container_id = spread.interaction_id and carried_rows.position = spread.position
    left join curated as said on said.interaction_id = carried_rows.carried_ids[1]
),
gathered as (
    select
        interaction_id,
        list(message order by position) as prompt,
        list(carried_ids[1] order by position) filter (where carried_ids is not null) as carried,
        flatten(list(carried_ids[2:] order by position) filter (where carried_ids is not null)) as copies
    from weighed
    group by interaction_id
)
select
    curated.*,
    case
        when text is not null or token_ids is not null then '[]'
        else cast(to_json(list_append(
            prompt, json_merge_patch(cast(completion as json), json_object(
                'role', 'assistant', 'weight', 1, 'reasoning_content', nullif(trim(reasoning), ''),
                'learnt_cut', nullif(was_cut, false)
            ))
        )) as varchar)
    end as chat,
    list_concat(list_append(coalesce(carried, []), curated.interaction_id), coalesce(copies, [])) as interaction_ids
from curated
left join gathered using (interaction_id)
where interaction_id not in (select interaction_id from contained_rows)
