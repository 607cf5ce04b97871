-- A conversation written as one text, "\n\nHuman: ...\n\nAssistant: ..." (hh-rlhf), as messages.
-- needs: openai_role()
-- makes: macro transcript_messages(written)
create or replace temp macro transcript_messages(written) as
list_transform(
    list_filter(
        string_split(
            regexp_replace(
                concat(chr(10), chr(10), ltrim(translate(written, chr(30) || chr(31), '  '))),
                '\n\n(Human|Assistant|System):[ \t]?', chr(30) || '\1' || chr(31), 'g'
            ),
            chr(30)
        ),
        lambda turn: contains(turn, chr(31))
    ),
    lambda turn: to_json(struct_pack(
        "role" := openai_role(split_part(turn, chr(31), 1)), "content" := rtrim(split_part(turn, chr(31), 2), chr(10))
    ))
)
