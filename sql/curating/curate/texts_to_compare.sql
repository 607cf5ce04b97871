-- The texts of the rows whose similarity must be known exactly, best first: what curating/clean/texts.sql gave to their signatures.
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
    ), ' ') as new_turn,
    if(answered, conversation[-1].said, null) as answer
from told
order by place
