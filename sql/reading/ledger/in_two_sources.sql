-- A listed object that another source lists too.
-- needs: listed, listed_objects
-- makes: rows (uri, other)
select listed.uri, listed_objects.source as other
from listed
inner join listed_objects on listed_objects.uri = listed.uri and listed_objects.source <> listed.source
order by listed.uri, other
limit 1
