-- Texts of the suspect rows, the same as for their signatures: the new turn, and the answer if there is one.
-- needs: cleaned_interactions, conversation_texts(), new_messages(), suspects, unique_rows
-- makes: temp view texts_to_compare (place, new_turn, answer)
create or replace temp view texts_to_compare as
with conversations_read as (
    select
        place,
        conversation_texts(messages, completion) as conversation,
        coalesce(try(json_type(completion)) = 'OBJECT', false) as answered
    from cleaned_interactions
    join (select place, interaction_id from unique_rows semi join suspects using (place)) as chosen using (interaction_id)
)
select
    place,
    array_to_string(list_transform(
        new_messages(if(answered, conversation[1:-2], conversation)), lambda message: message.text
    ), ' ') as new_turn,
    if(answered, conversation[-1].text, null) as answer
from conversations_read
