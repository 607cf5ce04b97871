-- The workload's quarantine as it will be.
select *
from quarantine
anti join reread on quarantine.source_uri = reread.uri
union all by name
select
    $workload as workload, batch.source, batch.uri as source_uri, quarantined.row as source_row,
    quarantined.error_code, quarantined.message, quarantined.raw
from quarantined
inner join batch using (object)
order by source_uri, source_row, error_code
