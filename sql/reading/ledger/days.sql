-- All days that objects are known to have records of.
-- needs: ledger
-- makes: rows (day)
select distinct unnest(days) as day
from ledger
order by day
