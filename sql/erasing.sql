-- name: selected
-- Interactions that the asked hashes mean: of a user, a session, or themselves.
create or replace temp table selected as
with hashed as (
    select
        workload, dt, interaction_id, request_id, alias_id, trace_id, session_id, user_hash, source, source_uri, source_row, ts,
        content_sha256,
        if('session' in (select kind from asked), sha256(concat($user_hash_key, chr(31), session_id)), null) as session,
        if('interaction' in (select kind from asked), sha256(concat($user_hash_key, chr(31), interaction_id)), null) as interaction
    from known_interactions
)
select * exclude (session, interaction), 'asked' as because
from hashed
where user_hash in (select sha256 from asked where kind = 'user')
    or session_id is not null and session in (select sha256 from asked where kind = 'session')
    or interaction in (select sha256 from asked where kind = 'interaction')

-- name: workloads
-- Selected rows by workload.
select workload, count(*) as selected, count(distinct session_id) as sessions
from selected
group by workload
order by workload

-- name: derived
-- Interactions whose cleaned rows may hold what a selected one says: itself, and requests that go on from its response, and from
-- theirs, whatever user they have: cleaning puts the turns before them.
create or replace temp table derived as
with recursive walk as (
    select workload, source, request_id, interaction_id from selected
    union
    select interactions.workload, interactions.source, interactions.request_id, interactions.interaction_id
    from interactions
    join walk
        on walk.workload = interactions.workload and walk.source = interactions.source
        and walk.request_id = interactions.params ->> '$.context.previous_response_id'
    where contains(interactions.params, '"previous_response_id"')
)
select distinct workload, interaction_id from walk

-- name: seeds_repeating
-- Seeds in finished datasets that repeat an erased exchange. $files: Parquet files with row_id, messages and text
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

-- name: places
-- Source objects that hold erased records, feedback about them, or quarantined records that name them, with their number and the
-- first lines.
with places as (
    select source_uri as uri, source_row as row from selected
    union
    select detail ->> '$.uri', cast(detail ->> '$.row' as bigint)
    from decisions
    where stage = 'ingest' and interaction_id in (select interaction_id from selected)
    union
    select source_uri, source_row from marked_feedback where change is not null
    union
    select source_uri, source_row from marked_quarantine where change is not null
)
select uri as source_uri, count(*) as records, list(distinct row order by row)[:20] as lines
from places
where uri is not null
group by uri
order by uri

-- name: shared_sessions
-- Rows of other users in sessions of the selected ones, which stay and may repeat their texts.
select count(distinct known_interactions.session_id) as sessions, count(*) as rows_of_others
from known_interactions
join (select distinct workload, session_id from selected where session_id is not null) as theirs using (workload, session_id)
anti join selected using (workload, interaction_id)

-- name: further_tombstones
-- Tombstones beside the asked ones: of rows that the asked hashes do not name, of ids that feedback may name, and of exchanges
-- that seeds may repeat.
create or replace temp table further_tombstones as
select distinct 'interaction' as kind, sha256(concat($user_hash_key, chr(31), interaction_id)) as sha256
from selected
where because <> 'asked'
union
select distinct 'about' as kind, sha256(concat($user_hash_key, chr(31), id)) as sha256
from erased_ids
union
select 'exchange' as kind, sha256
from erased_exchanges

-- name: their_texts
-- What the selected interactions say, as JSON (as cleaned where retention emptied them), and the comments of people on them.
select unnest([messages, completion, to_json(reasoning)]) as text
from interactions
semi join selected using (workload, interaction_id)
union all
select unnest([messages, completion, replaced, to_json(reasoning)])
from cleaned_interactions
semi join selected using (workload, interaction_id)
semi join (select workload, interaction_id from interactions where emptied is not null) as emptied
    using (workload, interaction_id)
union all
select to_json(comment)
from feedback
where comment is not null
    and (
        interaction_id in (select interaction_id from selected)
        or voter_hash in (select sha256 from asked where kind = 'user')
        or (workload, source_uri) in (select (workload, uri) from asked_objects)
    )

-- name: other_texts
-- What some of the other interactions say, to know the phrases that everybody uses; as cleaned where retention emptied them.
select concat(coalesce(drawn.messages, cleaned.messages), chr(10), coalesce(drawn.completion, cleaned.completion)) as text
from (
    select workload, interaction_id, messages, completion, emptied
    from interactions using sample reservoir (1000 rows) repeatable (1)
) as drawn
left join cleaned_interactions as cleaned
    on cleaned.workload = drawn.workload and cleaned.interaction_id = drawn.interaction_id and drawn.emptied is not null
anti join derived on derived.workload = drawn.workload and derived.interaction_id = drawn.interaction_id

-- name: erased_shapes
-- Names of prompt shapes that only erased rows have: a name holds a word of a prompt. Of cleaned rows, and of those
-- in files of datasets.
with theirs as (
    select prompt_shape as shape from cleaned_interactions semi join derived using (workload, interaction_id)
    union
    select prompt_shape from in_files where is_erased
),
staying as (
    select prompt_shape as shape from cleaned_interactions anti join derived using (workload, interaction_id)
    union
    select prompt_shape from in_files where not is_erased
)
select shape
from theirs
anti join staying using (shape)
where not starts_with(shape, '#')
order by shape

-- name: affected
-- What an erasure changes in a table, by partition. Table and column are names in our code, never input.
-- placeholders: marked, partition
select workload, {partition} as part, count(*) as changed
from {marked}
where change is not null
group by all
order by all

-- name: remaining
-- Rows of some partitions after an erasure. Table and column are names in our code, never input.
-- placeholders: marked, partition
select * exclude (change)
from {marked}
where workload = $workload and list_contains($parts, {partition}) and change is distinct from 'erased'

-- name: erased_ids
-- Ids that only erased interactions have: feedback that names one of them is about erased text.
create or replace temp table erased_ids as
with theirs as (
    select
        workload, interaction_id as own,
        unnest([
            struct_pack(kind := 'interaction', id := interaction_id), struct_pack(kind := 'about', id := request_id),
            struct_pack(kind := 'about', id := alias_id), struct_pack(kind := 'about', id := trace_id),
            struct_pack(kind := 'session', id := session_id)
        ]) as named
    from selected
    union all
    -- edits that name the answer by its text
    select workload, interaction_id, struct_pack(kind := 'about', id := request_id)
    from feedback
    semi join selected using (workload, interaction_id)
    where starts_with(request_id, 'answer:')
),
named as (
    select distinct workload, named.kind as kind, named.id as id from theirs where named.id is not null
),
staying as (
    select workload, unnest([request_id, alias_id, trace_id, session_id]) as id
    from known_interactions
    anti join selected using (workload, interaction_id)
    where request_id in (select id from named) or alias_id in (select id from named) or trace_id in (select id from named)
        or session_id in (select id from named)
)
select named.* from named anti join staying using (workload, id)

-- name: erased_place
-- The detail of a decision on an erased record, as an ingest writes it: its place, and nothing of its content.
create or replace temp macro erased_place(uri, row) as
    cast(to_json(struct_pack(
        uri := uri, row := row, content_sha256 := cast(null as varchar), kept_uri := cast(null as varchar),
        kept_row := cast(null as bigint), same_content := cast(null as boolean)
    )) as varchar)

-- name: known_interactions
-- Ids of all interactions, also of those whose rows retention removed: datasets may still hold them.
create or replace temp view known_interactions as
select
    workload, dt, interaction_id, request_id, alias_id, trace_id, session_id, user_hash, source, source_uri, source_row, ts,
    content_sha256
from interactions
union all by name
select * from retired anti join interactions using (workload, interaction_id)

-- name: asked_objects
-- Objects of the sources of which only counts stay: feedback does not name its source, but its object.
create or replace temp table asked_objects as
select distinct workload, uri
from objects
semi join asked_sources using (workload, source)

-- name: selected_source
-- Interactions of the sources of which only counts stay.
create or replace temp table selected as
select
    workload, dt, interaction_id, request_id, alias_id, trace_id, session_id, user_hash, source, source_uri, source_row, ts,
    content_sha256, 'asked' as because
from interactions
semi join asked_sources using (workload, source)

-- name: same_sessions
-- Rows without a user in sessions that, of all users, only the asked ones take part in: their texts are the asked users'.
insert into selected by name
with theirs as (
    select distinct workload, session_id
    from selected
    where session_id is not null and user_hash in (select sha256 from asked where kind = 'user')
),
others as (
    select distinct known_interactions.workload, known_interactions.session_id
    from known_interactions
    join theirs using (workload, session_id)
    where known_interactions.user_hash not in (select sha256 from asked where kind = 'user')
)
select
    known_interactions.workload, dt, interaction_id, request_id, alias_id, trace_id, known_interactions.session_id, user_hash, source,
    source_uri, source_row, ts, content_sha256, 'same session' as because
from known_interactions
join theirs using (workload, session_id)
anti join others using (workload, session_id)
anti join selected using (workload, interaction_id)
where user_hash is null

-- name: same_texts
-- Rows that hold the text of a selected one, of the same user or without one: its conversation as their history, or its copy
-- in the same session. A client repeats the history letter by letter, so the beginning of the JSON is compared; as cleaned where
-- retention emptied the selected row.
insert into selected by name
with told as (
    select
        selected.workload, selected.session_id, selected.user_hash, selected.content_sha256, interactions.emptied is not null as
            as_cleaned, coalesce(interactions.messages, cleaned_interactions.messages) as said
    from selected
    join interactions using (workload, interaction_id)
    left join cleaned_interactions
        on cleaned_interactions.workload = selected.workload
        and cleaned_interactions.interaction_id = selected.interaction_id
        and interactions.emptied is not null
),
beginnings as (
    select * exclude (said), said[:length(said) - 1] || ',' as beginning from told where said is not null
),
repeating as (
    select interactions.workload, interactions.interaction_id, beginnings.user_hash as told_by
    from interactions
    join beginnings
        on beginnings.workload = interactions.workload
        and (
            beginnings.session_id is not distinct from interactions.session_id
            and beginnings.content_sha256 = interactions.content_sha256
            or not as_cleaned and starts_with(interactions.messages, beginnings.beginning)
        )
    union all
    select cleaned_interactions.workload, cleaned_interactions.interaction_id, beginnings.user_hash
    from cleaned_interactions
    join beginnings
        on as_cleaned
        and beginnings.workload = cleaned_interactions.workload
        and starts_with(cleaned_interactions.messages, beginnings.beginning)
)
select distinct
    workload, dt, interaction_id, request_id, alias_id, trace_id, session_id, user_hash, source, source_uri, source_row, ts,
    content_sha256, 'same text' as because
from interactions
join repeating using (workload, interaction_id)
anti join selected using (workload, interaction_id)
where user_hash is null or told_by is null or user_hash = told_by

-- name: exchanges
-- Hashes of what the selected interactions say and were answered, as logged and as cleaned: seeds may repeat it.
create or replace temp table erased_exchanges as
with told as (
    select messages, completion from interactions semi join selected using (workload, interaction_id)
    union all
    select messages, completion from cleaned_interactions semi join selected using (workload, interaction_id)
),
said as (
    select unnest(exchanges_of(conversation_texts(messages, completion))) as exchange
    from told
)
select distinct sha256(concat($user_hash_key, chr(31), exchange)) as sha256
from said

-- name: erased_hashes
-- All hashes of this erasure: what was asked, and what follows from it.
create or replace temp table erased_hashes as
select kind, sha256 from asked
union
select kind, sha256 from further_tombstones

-- name: ids_near
-- Ids of users (some hashes), sessions or requests (another case, or blanks) that may mean the asked one, with their rows.
with named as (
    select unnest([
        struct_pack(kind := 'user', id := user_hash), struct_pack(kind := 'session', id := session_id),
        struct_pack(kind := 'interaction', id := request_id)
    ], recursive := true)
    from known_interactions
)
select id, count(*) as rows
from named
where kind = $kind and id <> $asked and (list_contains($hashes, id) or kind <> 'user' and lower(trim(id)) = lower($asked))
group by id
order by id

-- name: interactions_named
-- Interactions that an id means: their own id, at least 8 of its first digits, or the id of their request.
select distinct interaction_id, interaction_id = $identifier or request_id = $identifier as exact
from interactions
where interaction_id = $identifier or request_id = $identifier
    or length($identifier) >= 8 and starts_with(interaction_id, $identifier)
order by exact desc, interaction_id
