-- What the batch brings to partitions that lose nothing.
select *
from new_decisions
anti join rewritten using (workload, stage)
