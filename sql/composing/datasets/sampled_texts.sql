-- What the rows of the dataset say. An assistant message has weight 1 if its own interaction was kept by curation, else 0
-- (context only). Reasoning that the model gave with an earlier answer and that later requests leave out is learnt with that
-- answer and is no part of the later context (learnt_reasoning); so is the request of that answer where it differs
-- (learnt_request). An answer that ended at the token limit has learnt_cut.
-- needs: contained_rows, curated, sampled, seeds
-- makes: temp table sampled_texts (row_id, origin, messages, tools, request, text, token_ids, labels)
create or replace temp table sampled_texts as
with chosen as (
    select row_id, origin from sampled where copies > 0
),
carried_rows as (
    select container_id, position, min(interaction_id) as carried_id
    from contained_rows
    where container_id in (select row_id from chosen)
    group by container_id, position
),
remarks as (
    select
        container_id as interaction_id,
        map_from_entries(list(struct_pack(k := carried_rows.position, v := json_object(
            'weight', 1,
            'learnt_reasoning', nullif(trim(said.reasoning), ''),
            'learnt_cut', nullif(said.was_cut, false),
            'learnt_request', case when said.request is distinct from containing.request then
                coalesce(cast(said.request as json), '{}'::json) end
        )))) as by_position
    from carried_rows
    join curated as containing on containing.interaction_id = carried_rows.container_id
    join curated as said on said.interaction_id = carried_rows.carried_id
    group by container_id
)
select
    interaction_id as row_id, 'interaction' as origin,
    case
        when text is not null or token_ids is not null then '[]'
        else cast(to_json(list_append(
            list_transform(cast(messages as json[]), lambda message, position: case
                when message ->> '$.role' = 'assistant' then json_merge_patch(message, coalesce(
                    by_position[position], json_object('weight', 0, 'learnt_reasoning', null, 'learnt_cut', null,
                                                       'learnt_request', null)))
                else message
            end),
            json_merge_patch(cast(completion as json), json_object(
                'role', 'assistant', 'weight', 1, 'reasoning_content', nullif(trim(reasoning), ''),
                'learnt_cut', nullif(was_cut, false)
            ))
        )) as varchar)
    end as messages,
    tools, request, text, token_ids, labels
from curated
left join remarks using (interaction_id)
where interaction_id in (select row_id from chosen where origin = 'interaction')
union all
select row_id, 'seed', messages, tools, request, text, token_ids, labels
from seeds
where row_id in (select row_id from chosen where origin = 'seed')
