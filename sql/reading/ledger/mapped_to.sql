-- How the moved objects were read: whose tables their rows may be in.
select distinct ledger.read_as
from ledger
inner join moved on ledger.uri = moved.old_uri
