-- The new messages of a request: those after its last answer, without system prompt.
-- makes: macro new_messages(prompt)
create or replace temp macro new_messages(prompt) as
    list_filter(
        prompt[
            len(prompt) + 2 - coalesce(nullif(list_position(
                list_transform(list_reverse(prompt), lambda message: message.role), 'assistant'
            ), 0), len(prompt) + 1) :
        ],
        lambda message: coalesce(message.role, '') not in ('system', 'developer')
    )
