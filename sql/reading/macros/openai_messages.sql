-- One side of an example as messages: a text is one message of role `speaker`, an object one message, a list a conversation.
-- needs: call_turns(), openai_message()
-- makes: macro openai_messages(content, speaker)
create or replace temp macro openai_messages(content, speaker) as
case json_type(content)
    when 'VARCHAR' then [to_json(struct_pack("role" := speaker, "content" := content ->> '$'))]
    when 'OBJECT' then [openai_message(content)]
    when 'ARRAY' then list_transform(
        try_cast(case
            when regexp_matches(cast(content as varchar), '"from"\s*:\s*"(?i:function|tool|observation)')
                then call_turns(cast(content as varchar))
            else cast(content as varchar)
        end as json[]),
        lambda each: openai_message(each)
    )
    else cast([] as json[])
end
