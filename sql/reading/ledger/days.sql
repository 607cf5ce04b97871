select distinct unnest(days) as day
from ledger
order by day
