-- conversation_texts with the hash that identifies each message. Each step is a list of its own, because DuckDB evaluates a
-- repeated expression in a lambda each time.
-- needs: conversation_texts(), message_identity(), one_line()
-- makes: macro conversation_with_identities(messages, completion)
create or replace temp macro conversation_with_identities(messages, completion) as
    list_transform(
        list_transform(
            conversation_texts(messages, completion),
            lambda message: struct_pack(
                role := message.role, content := message.content, text := message.text, line := one_line(message.text)
            )
        ),
        lambda message: struct_pack(
            role := message.role, text := message.text,
            identity := message_identity(message.role, message.line, message.content)
        )
    )
