-- The table quarantine, with what an erasure does to each row: records that name an erased id, as a whole JSON string or as a
-- word, lose their text and keep their place, and so do those of a source that is erased as a whole.
-- needs: asked_sources, erased_hashes, quarantine
-- parameters: $user_hash_key
-- makes: temp table marked_quarantine (workload, source, source_uri, source_row, error_code, message, raw, change)
create or replace temp table marked_quarantine as
with texts as (
    select workload, source_uri, source_row, coalesce(try(decode(raw)), cast(raw as varchar)) as text
    from quarantine
    where raw is not null
),
words as (
    select
        workload, source_uri, source_row,
        unnest(list_distinct(list_concat(
            regexp_extract_all(text, '"((?:[^"\\]|\\.)*)"', 1), regexp_extract_all(text, '[\w.@:+-]+')
        ))) as word
    from texts
),
named as (
    select distinct workload, source_uri, source_row, true as is_named
    from words
    where sha256(concat($user_hash_key, chr(31), word)) in (select sha256 from erased_hashes)
    union
    select workload, source_uri, source_row, true
    from quarantine
    semi join asked_sources using (workload, source)
)
select
    workload, source, source_uri, source_row, error_code, message, if(is_named, null, raw) as raw,
    if(is_named and raw is not null, 'changed', null) as change
from quarantine
left join named using (workload, source_uri, source_row)
