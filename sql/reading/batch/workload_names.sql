-- Rows that the batch adds to a workload, by their source and the workload that their records name.
-- needs: new_interactions
-- parameters: $workload
-- makes: rows (source, workload_name, rows)
select source, workload_name, count(*) as rows
from new_interactions
where workload = $workload and workload_name <> ''
group by source, workload_name
