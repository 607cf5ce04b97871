-- Arrived objects whose content must be hashed: a gone object of the same size has a known hash, and the etags do not decide. A
-- local etag is size and time only; a remote etag depends on the content and is compared first.
-- needs: arrived, gone
-- makes: rows (source, uri, bytes, etag, modified)
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
