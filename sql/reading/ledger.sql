-- name: objects
-- All entries, as rows of the table `objects`.
select $workload as workload, *
from ledger
order by source, uri

-- name: create
-- The workload's ledger as a table to work on.
create or replace temp table ledger as
select
    source, uri, etag, bytes, modified, rows, coalesce(days, []) as days, state, coalesce(format, '') as format,
    coalesce(problem, '') as problem, coalesce(read_as, '') as read_as, coalesce(partners, []) as partners,
    coalesce(content_sha256, '') as content_sha256, coalesce(unread_keys, '') as unread_keys
from objects

-- name: listed_objects
-- Objects that the sources list now.
create or replace temp table listed_objects (source varchar, uri varchar)

-- name: new_objects
-- Listed objects that no source had before.
create or replace temp table new_objects (source varchar, uri varchar)

-- name: delete_listed
-- Deletes a source's listing, before it is listed again.
delete from listed_objects
where list_contains($sources, source)

-- name: delete_new
-- Deletes a source's new objects, before it is listed again.
delete from new_objects
where list_contains($sources, source)

-- name: in_two_sources
-- A listed object that another source lists too.
select listed.uri, listed_objects.source as other
from listed
inner join listed_objects on listed_objects.uri = listed.uri and listed_objects.source <> listed.source
order by listed.uri, other
limit 1

-- name: add_new
-- Adds listed objects that the ledger does not have to `new_objects`.
insert into new_objects
select source, uri
from listed
anti join ledger using (uri)

-- name: new_or_changed
-- Listed objects that are new, changed, listed under another source, or were read with other settings; with how they were read.
with known as (
    select listed.*, ledger.* exclude (uri) rename (source as was_source, etag as was_etag, bytes as was_bytes, modified as was_modified)
    from listed
    left join ledger on ledger.uri = listed.uri
    qualify row_number() over (partition by listed.uri order by ledger.source = listed.source desc nulls last) = 1
)
select source, uri, bytes, etag, modified, coalesce(format, '') as format, coalesce(read_as, '') as read_as,
    coalesce(partners, []) as partners
from known
where was_source is distinct from source or was_etag <> etag or was_bytes <> bytes
    or (state = 'read' and read_as is distinct from $read_as)
order by source, uri

-- name: add_listed
-- Adds a page of a listing to `listed_objects`.
insert into listed_objects
select source, uri
from listed

-- name: drop_vanished
-- Deletes objects that vanished before they were read. Objects that were read keep their rows and their entry.
delete from ledger
where state <> 'read'
    and list_contains($sources, source)
    and not exists (select 1 from listed_objects where listed_objects.source = ledger.source and listed_objects.uri = ledger.uri)
returning uri

-- name: touched
-- Listed objects that were read as they are to be read now, of which only the time or the etag differs: their content decides.
select listed.*, ledger.content_sha256
from listed
inner join ledger using (source, uri, bytes)
where ledger.state = 'read' and ledger.etag <> listed.etag and ledger.read_as = $read_as and ledger.content_sha256 <> ''
order by listed.uri

-- name: keep_touched
-- Gives the entries of objects with the content that was read their etag and time of now.
update ledger
set etag = listed.etag, modified = listed.modified
from listed
where ledger.source = listed.source and ledger.uri = listed.uri and list_contains($uris::varchar[], ledger.uri)

-- name: mapped_to
-- How the moved objects were read: names the workloads that may have their rows.
select distinct ledger.read_as
from ledger
inner join moved on ledger.uri = moved.old_uri

-- name: relocated
-- Entries of moved objects under their new uri, etag and time. An object that was read with other settings waits to be read
-- again.
create or replace temp table relocated as
select
    known.* replace (
        listed_now.uri as uri, listed_now.etag as etag, listed_now.modified as modified,
        case when known.read_as = $read_as then 'read' else 'found' end as state
    )
from moved
inner join ledger as known on known.uri = moved.old_uri
inner join ledger as listed_now on listed_now.uri = moved.uri

-- name: delete_moved
-- Deletes the entries of moved objects, under the old and the new uri.
delete from ledger
where uri in (select old_uri from moved) or uri in (select uri from moved)

-- name: add_relocated
-- Adds the entries of moved objects under their new uri.
insert into ledger by name
select * from relocated

-- name: rename_partners
-- Renames a moved object in the entries of its partners.
update ledger
set partners = renamed.partners
from (
    select held.uri, list(coalesce(moved.uri, held.other) order by coalesce(moved.uri, held.other)) as partners
    from (select uri, unnest(partners) as other from ledger) as held
    left join moved on moved.old_uri = held.other
    group by held.uri
    having count(moved.uri) > 0
) as renamed
where ledger.uri = renamed.uri

-- name: delete_replaced
-- Deletes entries that are about to be replaced. An object has one entry, whatever its source is called: sources share no
-- objects.
delete from ledger
using arriving
where ledger.uri = arriving.uri

-- name: add
-- Adds entries to the ledger.
insert into ledger by name
select * from arriving

-- name: waiting
-- Objects that wait to be read, in reading order.
create or replace temp table waiting_objects as
select row_number() over (order by days, source, uri) as place, source, uri
from ledger
where state <> 'read'
    and list_contains($sources, source)
    and ($days is null or list_has_any(days, $days))
    and not ($dayless and len(days) > 0)

-- name: count_waiting
-- Number of objects that wait to be read.
select count(*) from waiting_objects

-- name: portion
-- A portion of the waiting objects, without those that were read in the meantime.
select ledger.*
from ledger
inner join waiting_objects using (source, uri)
where place > $after and place <= $after + $count and ledger.state <> 'read'
order by place

-- name: entries
-- Entries of the wanted uris that the sources still list.
select ledger.*
from ledger
semi join wanted_uris using (uri)
semi join listed_objects using (source, uri)
where list_contains($sources, source)
order by source, uri

-- name: of_formats
-- Listed objects of some formats.
select *
from ledger
semi join listed_objects using (source, uri)
where list_contains($formats, format) and list_contains($sources, source)
order by source, uri

-- name: partners_of
-- Further listed objects that hold parts of rows together with the wanted ones.
with pairs as (
    select uri, unnest(partners) as partner
    from ledger
    where len(partners) > 0
),
connected as (
    select pairs.partner as uri from pairs semi join wanted_uris on pairs.uri = wanted_uris.uri
    union
    select pairs.uri from pairs semi join wanted_uris on pairs.partner = wanted_uris.uri
)
select *
from ledger
semi join listed_objects using (source, uri)
semi join connected using (uri)
anti join wanted_uris using (uri)
where list_contains($sources, source)
order by source, uri

-- name: whole
-- Listed objects of some formats, and some by name, whose partners are listed too.
with chosen as (
    select *
    from ledger
    semi join listed_objects using (source, uri)
    where
        list_contains($sources, source)
        and (list_contains($formats, format) or uri in (select uri from wanted_uris))
),
torn as (
    select held.uri
    from (select uri, unnest(partners) as partner from chosen) as held
    anti join listed_objects on held.partner = listed_objects.uri
)
select *
from chosen
anti join torn using (uri)
order by source, uri

-- name: days
-- All days that objects are known to have records of.
select distinct unnest(days) as day
from ledger
order by day

-- name: unread_days
-- Days of objects that are not read yet, or not completely.
select distinct unnest(days) as day
from ledger
where state <> 'read'
order by day

-- name: unread
-- Objects that wait to be read.
select source, uri, etag
from ledger
where state <> 'read'
order by uri, source

-- name: arrived
-- New objects with the size of an object that is gone.
create or replace temp table arrived as
select source, uri, bytes, etag, modified
from ledger
semi join new_objects using (source, uri)
semi join gone using (bytes)
where source = $source

-- name: ends
-- Of each source with more than $count objects that were read: the uri after which its last $count come.
with newest as (
    select source, max(uri, cast($count as bigint) + 1) as uris from objects where state = 'read' group by source
)
select source, uris[-1] as after from newest where len(uris) > $count

-- name: gone
-- Read objects that their source no longer lists, if a new object has the same size.
create or replace temp table gone as
with arriving_sizes as (
    select ledger.source, ledger.bytes
    from ledger
    semi join new_objects using (source, uri)
)
select uri, bytes, etag, content_sha256
from ledger
semi join arriving_sizes using (source, bytes)
where source = $source and state = 'read'
    and not exists (select 1 from listed_objects where listed_objects.source = ledger.source and listed_objects.uri = ledger.uri)

-- name: known_hashes
-- A hash of each object that was read, of everything that would make it be read again.
select md5_number_lower(concat_ws(chr(10), source, uri, etag, bytes::varchar, coalesce(read_as, ''))) as hash
from objects
where state = 'read'

-- name: match_moved
-- Pairs objects that are gone with objects that arrived: same size and content (or etag, where the content is not known and the
-- object is remote), and the same last parts of the path. Equal candidates are paired in order. $by_content: compare content,
-- else etag. $depth: number of path parts that must agree
insert into moved
with gone_objects as (
    select
        uri, bytes, case when $by_content then content_sha256 else etag end as identity,
        case when $depth > 0 then array_to_string(string_split(nfc_normalize(uri), '/')[-$depth:], '/') else '' end as path_end
    from gone
    where case
            when $by_content then content_sha256 <> ''
            else content_sha256 = '' or not starts_with(uri, '/')
        end
        and uri not in (select old_uri from moved)
),
arrived_objects as (
    select
        arrived.uri, arrived.bytes, case when $by_content then digests.content_sha256 else arrived.etag end as identity,
        case when $depth > 0 then array_to_string(string_split(nfc_normalize(arrived.uri), '/')[-$depth:], '/') else '' end as path_end
    from arrived
    left join digests on digests.uri = arrived.uri
    where arrived.uri not in (select uri from moved)
),
numbered_before as (
    select *, row_number() over (partition by bytes, identity, path_end order by uri) as place from gone_objects
),
numbered_now as (
    select *, row_number() over (partition by bytes, identity, path_end order by uri) as place from arrived_objects
)
select numbered_before.uri as old_uri, numbered_now.uri
from numbered_before
inner join numbered_now using (bytes, identity, path_end, place)

-- name: moved
-- Moved objects: old uri and new uri.
create or replace temp table moved (old_uri varchar, uri varchar)

-- name: not_read
-- Listed objects that were not yet read in their present state with the present settings. days: of their records, where a run
-- that read other days looked into an object whose key names none.
select
    listed.source, listed.uri, listed.bytes, listed.etag, listed.modified,
    case when objects.etag = listed.etag and objects.bytes = listed.bytes then objects.days end as days
from listed
left join objects using (source, uri)
where objects.uri is null or objects.state <> 'read' or objects.etag <> listed.etag or objects.bytes <> listed.bytes
    or objects.read_as is distinct from $read_as
order by listed.source, listed.uri

-- name: to_digest
-- Arrived objects whose content must be hashed: a gone object of the same size has a known hash, and the etags do not decide. A
-- local etag is size and time only; a remote etag depends on the content and is compared first.
select arrived.source, arrived.uri, arrived.bytes, arrived.etag, arrived.modified
from arrived
where exists (select 1 from gone where gone.bytes = arrived.bytes and gone.content_sha256 <> '')
    and (
        starts_with(arrived.uri, '/')
        or (
            not exists (select 1 from gone where gone.bytes = arrived.bytes and gone.etag = arrived.etag)
            and exists (
                select 1 from gone
                where gone.bytes = arrived.bytes
                    and parse_filename(nfc_normalize(gone.uri)) = parse_filename(nfc_normalize(arrived.uri))
            )
        )
    )
order by arrived.uri
