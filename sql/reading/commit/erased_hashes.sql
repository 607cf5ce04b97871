-- Hashes of erased data for each workload of an ingest; a tombstone of workload * counts in every workload.
-- needs: erasures
-- parameters: $workloads
-- makes: temp table erased_hashes (workload, kind, sha256)
create or replace temp table erased_hashes as
with wanted as (
    select unnest($workloads::varchar[]) as workload
)
select distinct wanted.workload, erasures.kind, erasures.sha256
from erasures
join wanted on erasures.workload = wanted.workload
union
select distinct wanted.workload, erasures.kind, erasures.sha256
from erasures
cross join wanted
where erasures.workload = '*'
