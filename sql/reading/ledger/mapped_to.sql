-- How the moved objects were read: names the workloads that may have their rows.
-- needs: ledger, moved
-- makes: rows (read_as)
select distinct ledger.read_as
from ledger
inner join moved on ledger.uri = moved.old_uri
