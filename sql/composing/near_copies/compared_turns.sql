-- The turns to compare, as for the signatures of cleaned rows: the new messages of the last request, and the answer.
-- needs: compared, conversation_texts(), curated, new_messages(), seeds
-- makes: temp view compared_turns (row_id, new_turn, answer)
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
