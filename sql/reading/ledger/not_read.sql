-- Listed objects that were not yet read in their present state with the present settings.
-- needs: listed, objects
-- parameters: $read_as
-- makes: rows (source, uri, bytes, etag, modified)
select listed.source, listed.uri, listed.bytes, listed.etag, listed.modified
from listed
left join objects using (source, uri)
where objects.uri is null or objects.state <> 'read' or objects.etag <> listed.etag or objects.bytes <> listed.bytes
    or objects.read_as is distinct from $read_as
order by listed.source, listed.uri
