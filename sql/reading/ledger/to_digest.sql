-- Of the arrived objects, those whose content has to be looked at: the content of one that is gone is known, and no etag says that
-- this is it. A local etag is size and time only; a remote one comes of the content, and is asked first.
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
