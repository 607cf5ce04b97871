insert into fresh
select source, uri
from listed
anti join ledger using (uri)
