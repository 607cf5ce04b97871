-- The same with what makes each message the same as another.
create or replace temp macro conversation_of(messages, completion) as
    list_transform(
        told_in(messages, completion),
        lambda message: struct_pack(
            role := message.role, said := message.said,
            identity := message_identity(message.role, message.said, message.content)
        )
    )
