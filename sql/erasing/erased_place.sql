-- The detail of a decision on an erased record, as an ingest writes it: its place, and nothing of its content.
-- makes: macro erased_place(uri, row)
create or replace temp macro erased_place(uri, row) as
    cast(to_json(struct_pack(
        uri := uri, row := row, content_sha256 := cast(null as varchar), kept_uri := cast(null as varchar),
        kept_row := cast(null as bigint), same_content := cast(null as boolean)
    )) as varchar)
