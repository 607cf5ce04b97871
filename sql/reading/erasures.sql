-- name: erased_hashes
-- Hashes of erased data for each workload of an ingest; a tombstone of workload * counts in every workload.
create or replace temp table erased_hashes as
with wanted as (
    select unnest($workloads::varchar[]) as workload
)
select distinct wanted.workload, erasures.kind, erasures.sha256
from erasures
join wanted on erasures.workload = wanted.workload
union
select distinct wanted.workload, erasures.kind, erasures.sha256
from erasures
cross join wanted
where erasures.workload = '*'

-- name: count_erased_hashes
-- Number of hashes of erased data.
select count(*) as hashes from erased_hashes

-- name: newly_erased_ids
-- Ids that only erased records of the batch have: feedback that names one of them is about erased text, whichever was read first.
create or replace temp table newly_erased_ids as
with gone as (
    select object, row, part from row_decisions where rule = 'erased'
),
named as (
    select distinct unnest([interaction_id, request_id, alias_id, trace_id, session_id]) as id
    from staged
    semi join gone using (object, row, part)
),
staying as (
    select unnest([interaction_id, request_id, alias_id, trace_id, session_id]) as id
    from staged
    anti join gone using (object, row, part)
    where exists (select 1 from gone)
    union all
    select unnest([interaction_id, request_id, alias_id, trace_id, session_id])
    from interactions
    anti join reread on interactions.source_uri = reread.uri
    where exists (select 1 from gone)
        and (
            interaction_id in (select id from named) or request_id in (select id from named) or alias_id in (select id from named)
            or trace_id in (select id from named) or session_id in (select id from named)
        )
)
select id, sha256(concat($user_hash_key, chr(31), id)) as sha256
from named
anti join staying using (id)
where id is not null

-- name: erased_feedback
-- Staged feedback about erased interactions: in the record of one, or naming an erased id, also one of this batch.
create or replace temp table erased_feedback as
with named as (
    select object, row, part, workload, unnest([interaction_id, request_id, trace_id, session_id]) as id
    from staged_feedback
    semi join (select distinct workload from erased_hashes) as affected using (workload)
),
hashed as (
    select object, row, part, workload, sha256(concat($user_hash_key, chr(31), id)) as keyed from named where id is not null
)
select object, row, part from hashed
semi join erased_hashes on erased_hashes.workload = hashed.workload and sha256 = keyed
union
select object, row, part from staged_feedback
semi join erased_hashes
    on erased_hashes.workload = staged_feedback.workload and kind = 'user' and sha256 = staged_feedback.voter_hash
union
select object, row, part from named
semi join newly_erased_ids using (id)
union
select object, row, part from staged_feedback
semi join (select object, row from row_decisions where rule = 'erased') as gone using (object, row)
where extra

-- name: quarantine_without_erased
-- Empties the text of quarantined records that name an erased id: the whole of a JSON string, or a word of the text.
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
    join erased_hashes on erased_hashes.workload = $workload and sha256 in (
        sha256(concat($user_hash_key, chr(31), word)), sha256(concat($user_hash_key, chr(31), user_name(word)))
    )
) as named
where quarantined.object = named.object and quarantined.row = named.row

-- name: new_tombstones
-- Hashes of newly erased ids that no tombstone has yet.
select sha256
from newly_erased_ids
anti join erased_hashes using (sha256)
order by sha256

-- name: objects_with_removed_copies
-- Objects with a record that was dropped as a copy of a record in `wanted_uris`: they must be read again when those change.
select distinct detail ->> '$.uri' as uri
from decisions
semi join wanted_uris on decisions.detail ->> '$.kept_uri' = wanted_uris.uri
where stage = 'ingest' and rule in ('repeated_record', 'repeated_id')
