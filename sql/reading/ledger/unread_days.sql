-- Days of objects that are not read yet, or not completely.
-- needs: ledger
-- makes: rows (day)
select distinct unnest(days) as day
from ledger
where state <> 'read'
order by day
