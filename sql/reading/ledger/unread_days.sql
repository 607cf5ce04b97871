select distinct unnest(days) as day
from ledger
where state <> 'read'
order by day
