-- Rows of some partitions after an erasure. Table and column are names in our code, never input.
-- needs: <marked>
-- parameters: $parts, $workload
-- placeholders: marked, partition
-- makes: rows (*)
select * exclude (change)
from {marked}
where workload = $workload and list_contains($parts, {partition}) and change is distinct from 'erased'
