-- Empties the text of quarantined records that name an erased id: the whole of a JSON string, or a word of the text.
-- needs: erased_hashes, quarantined
-- parameters: $user_hash_key, $workload
-- makes: update of quarantined (raw)
update quarantined
set raw = null
from (
    select distinct words.object, words.row
    from (
        select
            object, row,
            unnest(list_distinct(list_concat(
                regexp_extract_all(text, '"((?:[^"\\]|\\.)*)"', 1), regexp_extract_all(text, '[\w.@:+-]+')
            ))) as word
        from (
            select object, row, coalesce(try(decode(raw)), cast(raw as varchar)) as text
            from quarantined
            where raw is not null
        ) as texts
    ) as words
    join erased_hashes on erased_hashes.workload = $workload and sha256 = sha256(concat($user_hash_key, chr(31), word))
) as named
where quarantined.object = named.object and quarantined.row = named.row
