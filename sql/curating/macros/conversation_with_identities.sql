-- The same with what makes each message the same as another. Each step is a list of its own: inside a lambda, an expression that
-- is written twice is computed twice.
create or replace temp macro conversation_with_identities(messages, completion) as
    list_transform(
        list_transform(
            conversation_texts(messages, completion),
            lambda message: struct_pack(
                role := message.role, content := message.content, said := message.said, line := one_line(message.said)
            )
        ),
        lambda message: struct_pack(
            role := message.role, said := message.said,
            identity := message_identity(message.role, message.line, message.content)
        )
    )
