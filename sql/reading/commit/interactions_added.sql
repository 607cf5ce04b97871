-- What the batch brings to partitions that lose nothing.
select *
from new_interactions
anti join rewritten using (workload, dt)
