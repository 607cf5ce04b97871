-- Listed objects that were not read as they are now.
select listed.source, listed.uri, listed.bytes, listed.etag, listed.modified
from listed
left join objects using (source, uri)
where objects.uri is null or objects.state <> 'read' or objects.etag <> listed.etag or objects.bytes <> listed.bytes
order by listed.source, listed.uri
