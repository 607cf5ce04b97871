-- All entries, as rows of the table `objects`.
-- needs: ledger
-- parameters: $workload
-- makes: rows (workload, *)
select $workload as workload, *
from ledger
order by source, uri
