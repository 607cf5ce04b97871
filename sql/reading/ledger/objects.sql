select $workload as workload, *
from ledger
order by source, uri
