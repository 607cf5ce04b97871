-- One side of an example as messages: a text is said by `speaker`, a message stands for itself, a list is a conversation.
create or replace temp macro turns(said, speaker) as
case json_type(said)
    when 'VARCHAR' then [to_json(struct_pack("role" := speaker, "content" := said ->> '$'))]
    when 'OBJECT' then [spoken(said, 1)]
    when 'ARRAY' then list_transform(try_cast(said as json[]), lambda each, nth: spoken(each, nth))
    else cast([] as json[])
end
