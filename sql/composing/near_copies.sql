-- name: seed_ids
-- Seeds in order of their id.
select row_id, row_number() over (order by row_id) as place from seeds order by place

-- name: signed_rows
-- Signatures of curated rows, with the conversation that each is part of and its split: 0 test, 1 validation, 2 training.
select
    curated.interaction_id as row_id,
    coalesce(container_id, curated.interaction_id) as conversation_id,
    case assigned_splits.split when 'test' then 0 when 'validation' then 1 else 2 end as place,
    signature
from curated
left join contained_rows using (interaction_id)
join assigned_splits on assigned_splits.row_id = coalesce(container_id, curated.interaction_id)
where len(signature) > 0
order by place, row_id

-- name: compared_turns
-- The turns to compare, as for the signatures of cleaned rows: the new messages of the last request, and the answer.
create or replace temp view compared_turns as
with told as (
    select interaction_id as row_id, messages, completion from curated
    union all
    select row_id, messages, case when text is not null then cast(to_json(struct_pack("content" := text)) as varchar) end
    from seeds
),
conversations_read as (
    select row_id, conversation_texts(messages, completion) as conversation
    from told
    where row_id in (select row_id from compared)
)
select
    row_id,
    array_to_string(
        list_transform(new_messages(conversation[1:-2]), lambda message: message.text), ' '
    ) as new_turn,
    conversation[-1].text as answer
from conversations_read

-- name: turns_in_order
-- The compared turns in order of place.
select row_id, new_turn, answer
from compared
join compared_turns using (row_id)
order by place
