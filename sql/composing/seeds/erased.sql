-- Seeds with an exchange that was erased from the lake.
-- needs: conversation_texts(), erased_hashes, exchanges_of(), seeds
-- parameters: $user_hash_key
-- makes: temp table erased_seeds (row_id)
create or replace temp table erased_seeds as
with seeds_read as (
    select
        row_id, messages,
        case when text is not null then cast(to_json(struct_pack("content" := text)) as varchar) end as completion
    from seeds
),
told as (
    select row_id, unnest(exchanges_of(conversation_texts(messages, completion))) as exchange
    from seeds_read
)
select distinct row_id
from told
where sha256(concat($user_hash_key, chr(31), exchange)) in (select sha256 from erased_hashes where kind = 'exchange')
