-- Pairs what is gone with what arrived: the same size and content (or etag, where a content is not known or cannot be said by
-- reading a local file), and the same last parts of the path. Of several alike, the first goes with the first.
-- $by_content: content, else etag; $depth: how many parts of the path have to be the same
insert into moved
with left_behind as (
    select
        uri, bytes, case when $by_content then content_sha256 else etag end as told,
        case when $depth > 0 then array_to_string(string_split(nfc_normalize(uri), '/')[-$depth:], '/') else '' end as tail
    from gone
    where case
            when $by_content then content_sha256 <> ''
            else content_sha256 = '' or not starts_with(uri, '/')
        end
        and uri not in (select old_uri from moved)
),

found as (
    select
        arrived.uri, arrived.bytes, case when $by_content then digests.content_sha256 else arrived.etag end as told,
        case when $depth > 0 then array_to_string(string_split(nfc_normalize(arrived.uri), '/')[-$depth:], '/') else '' end as tail
    from arrived
    left join digests on digests.uri = arrived.uri
    where arrived.uri not in (select uri from moved)
),

numbered_before as (
    select *, row_number() over (partition by bytes, told, tail order by uri) as place from left_behind
),

numbered_now as (
    select *, row_number() over (partition by bytes, told, tail order by uri) as place from found
)

select numbered_before.uri as old_uri, numbered_now.uri
from numbered_before
inner join numbered_now using (bytes, told, tail, place)
