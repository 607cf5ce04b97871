-- One side of an example as messages: a text is one message of role `speaker`, an object one message, a list a conversation.
-- needs: openai_message()
-- makes: macro openai_messages(content, speaker)
create or replace temp macro openai_messages(content, speaker) as
case json_type(content)
    when 'VARCHAR' then [to_json(struct_pack("role" := speaker, "content" := content ->> '$'))]
    when 'OBJECT' then [openai_message(content, 1)]
    when 'ARRAY' then list_transform(try_cast(content as json[]), lambda each, nth: openai_message(each, nth))
    else cast([] as json[])
end
