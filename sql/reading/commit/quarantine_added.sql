-- What the batch brings to partitions that lose nothing.
select *
from new_quarantine
anti join rewritten using (workload)
