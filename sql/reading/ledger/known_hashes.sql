-- A hash of each object that was read, of everything that would make it be read again.
-- needs: objects
-- makes: rows (hash)
select md5_number_lower(concat_ws(chr(10), source, uri, etag, bytes::varchar, coalesce(read_as, ''))) as hash
from objects
where state = 'read'
