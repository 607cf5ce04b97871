-- name: feedback
-- The table feedback, with what an erasure does to each row: erased where it is about an erased interaction, by the ids in the
-- record or by the interaction that it was tied to, or of a source that is erased as a whole. Tombstones of earlier erasures and
-- of ingests count too: by them feedback is found whose request was dropped.
create or replace temp table marked_feedback as
with tombstones as (
    select sha256 from erasures where kind in ('about', 'interaction', 'session')
)
select
    *,
    case
        when interaction_id in (select interaction_id from selected) then 'erased'
        when interaction_id in (select id from erased_ids) or given_id in (select id from erased_ids)
            or request_id in (select id from erased_ids) or trace_id in (select id from erased_ids)
            or session_id in (select id from erased_ids)
            then 'erased'
        when 'session' in (select kind from asked)
            and sha256(concat($user_hash_key, chr(31), session_id)) in (select sha256 from asked where kind = 'session')
            then 'erased'
        when interaction_id is not null and sha256(concat($user_hash_key, chr(31), interaction_id)) in (select sha256 from tombstones)
            or given_id is not null and sha256(concat($user_hash_key, chr(31), given_id)) in (select sha256 from tombstones)
            or request_id is not null and sha256(concat($user_hash_key, chr(31), request_id)) in (select sha256 from tombstones)
            or trace_id is not null and sha256(concat($user_hash_key, chr(31), trace_id)) in (select sha256 from tombstones)
            or session_id is not null and sha256(concat($user_hash_key, chr(31), session_id)) in (select sha256 from tombstones)
            then 'erased'
        when voter_hash in (select sha256 from asked where kind = 'user') then 'erased'
        when (workload, source_uri) in (select (workload, uri) from asked_objects) then 'erased'
    end as change
from feedback

-- name: judgements
-- The table judgements, with what an erasure does to each row: erased, or nothing.
create or replace temp view marked_judgements as
select *, case when interaction_id in (select interaction_id from derived) then 'erased' end as change
from judgements

-- name: contamination
-- The table contamination, with what an erasure does to each row: erased, or nothing.
create or replace temp view marked_contamination as
select *, case when interaction_id in (select interaction_id from derived) then 'erased' end as change
from contamination

-- name: cleaned_interactions
-- The table cleaned_interactions, with what an erasure does to each row: erased, or nothing.
create or replace temp view marked_cleaned_interactions as
select *, case when interaction_id in (select interaction_id from derived) then 'erased' end as change
from cleaned_interactions

-- name: decisions
-- The table decisions, with what an erasure does to each row. Decisions of ingest on erased records, also on their copies, keep
-- only the record's place, as an ingest after the erasure would write them, so the counts of records still add up. Later
-- decisions on them are erased. Decisions on other rows no longer name an erased one.
create or replace temp view marked_decisions as
with known as (
    select
        *,
        coalesce(interaction_id in (select interaction_id from selected), false)
        or stage <> 'ingest' and coalesce(interaction_id in (select interaction_id from derived), false) as is_theirs,
        coalesce(kept_id in (select interaction_id from selected), false) as names_theirs
    from decisions
),
noted as (
    select workload, dt, detail ->> '$.uri' as uri, detail ->> '$.row' as row, count(*) as decisions
    from decisions
    where stage = 'ingest' and rule = 'erased'
    group by all
),
places as (
    select
        workload, dt, source_uri as uri, source_row as row,
        row_number() over (partition by workload, dt, source_uri, source_row) as number
    from selected
),
-- a second try after a kill adds no second decision
added as (
    select places.workload, places.dt, places.uri, places.row
    from places
    left join noted
        on noted.workload = places.workload and noted.dt = places.dt and noted.uri = places.uri
        and noted.row = cast(places.row as varchar)
    where places.number > coalesce(noted.decisions, 0)
)
select
    workload, stage, version, dt, if(is_theirs, null, interaction_id) as interaction_id,
    if(is_theirs, 'erased', rule) as rule, kept,
    if(is_theirs and stage = 'ingest', erased_place(detail ->> '$.uri', cast(detail ->> '$.row' as bigint)), detail) as detail,
    if(is_theirs or names_theirs, null, kept_id) as kept_id,
    case when is_theirs and stage <> 'ingest' then 'erased' when is_theirs or names_theirs then 'changed' end as change
from known
union all
select
    workload, 'ingest', null, dt, null, 'erased', false, erased_place(uri, row),
    null, 'added'
from added

-- name: quarantine
-- The table quarantine, with what an erasure does to each row: records that name an erased id, as a whole JSON string or as a
-- word, lose their text and keep their place, and so do those of a source that is erased as a whole.
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
        or sha256(concat($user_hash_key, chr(31), user_name(word))) in (select sha256 from erased_hashes)
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

-- name: retired
-- The table retired, with what an erasure does to each row: erased, or nothing.
create or replace temp view marked_retired as
select *, case when interaction_id in (select interaction_id from selected) then 'erased' end as change
from retired

-- name: interactions
-- The table interactions, with what an erasure does to each row: erased, or nothing.
create or replace temp view marked_interactions as
select *, case when interaction_id in (select interaction_id from selected) then 'erased' end as change
from interactions
