-- Seeds in finished datasets that repeat an erased exchange. $files: Parquet files with row_id, messages and text
-- needs: conversation_texts(), erased_exchanges, exchanges_of()
-- parameters: $files, $user_hash_key
-- makes: rows (row_id)
with seeds_read as (
    select
        row_id, messages,
        case when text is not null then cast(to_json(struct_pack("content" := text)) as varchar) end as completion
    from read_parquet($files, union_by_name = true)
    where starts_with(row_id, 'seed:')
),
told as (
    select row_id, unnest(exchanges_of(conversation_texts(messages, completion))) as exchange
    from seeds_read
)
select distinct row_id
from told
where sha256(concat($user_hash_key, chr(31), exchange)) in (select sha256 from erased_exchanges)
order by row_id
