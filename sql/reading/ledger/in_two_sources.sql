-- A listed object that another source has as well.
select listed.uri, seen.source as other
from listed
inner join seen on seen.uri = listed.uri and seen.source <> listed.source
order by listed.uri, other
limit 1
