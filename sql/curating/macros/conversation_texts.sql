-- A row's messages and its answer as one list of role, content and text.
-- needs: conversation_of(), message_text()
-- makes: macro conversation_texts(messages, completion)
create or replace temp macro conversation_texts(messages, completion) as
    list_transform(
        conversation_of(messages, completion),
        lambda message: struct_pack(role := message.role, content := message.content, text := message_text(message))
    )
