-- Listed objects that were not yet read in their present state with the present settings. days: of their records, where a run
-- that read other days looked into an object whose key names none.
-- needs: listed, objects
-- parameters: $read_as
-- makes: rows (source, uri, bytes, etag, modified, days)
select
    listed.source,
    listed.uri,
    listed.bytes,
    listed.etag,
    listed.modified,
    case when objects.etag = listed.etag and objects.bytes = listed.bytes then objects.days end as days
from listed
left join objects using (source, uri)
where objects.uri is null or objects.state <> 'read' or objects.etag <> listed.etag or objects.bytes <> listed.bytes
    or objects.read_as is distinct from $read_as
order by listed.source, listed.uri
