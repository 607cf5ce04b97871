insert into seen
select source, uri
from listed
semi join (select source, uri from ledger where state <> 'read') as unread using (source, uri)
