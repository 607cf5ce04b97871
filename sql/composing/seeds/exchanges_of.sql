-- The exchanges of a conversation (conversation_texts): each message of a user with the answer that follows it, in one spelling of
-- case and white space. Short ones are anybody's and do not count.
-- makes: macro exchanges_of(conversation)
create or replace temp macro exchanges_of(conversation) as
    list_filter(
        list_transform(
            range(1, len(conversation)),
            lambda place: case
                when conversation[place].role = 'user' and conversation[place + 1].role = 'assistant'
                    and length(conversation[place].text) + length(conversation[place + 1].text) >= 32
                    then lower(concat(
                        trim(regexp_replace(conversation[place].text, '\s+', ' ', 'g')), chr(31),
                        trim(regexp_replace(conversation[place + 1].text, '\s+', ' ', 'g'))
                    ))
            end
        ),
        lambda exchange: exchange is not null
    )
