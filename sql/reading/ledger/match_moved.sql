-- Pairs objects that are gone with objects that arrived: same size and content (or etag, where the content is not known and the
-- object is remote), and the same last parts of the path. Equal candidates are paired in order. $by_content: compare content,
-- else etag. $depth: number of path parts that must agree
-- needs: arrived, digests, gone, moved
-- parameters: $by_content, $depth
-- makes: rows into moved (old_uri, uri)
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
