-- What the batch brings to partitions that lose nothing.
select *
from new_feedback
anti join rewritten using (workload, dt)
