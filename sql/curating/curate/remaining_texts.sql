-- What those rows are compared by: what is new in the request, and the answer.
with told as (
    select
        place,
        conversation_texts(messages, completion) as conversation,
        coalesce(try(json_type(completion)) = 'OBJECT', false) as answered
    from cleaned_interactions
    join (select place, interaction_id from standing semi join suspects using (place)) as chosen using (interaction_id)
)
select
    array_to_string(list_transform(
        new_messages(if(answered, conversation[1:-2], conversation)), lambda message: message.said
    ), ' ') || chr(10) || coalesce(if(answered, conversation[-1].said, null), '') as text
from told
order by place
