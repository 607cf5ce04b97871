-- What the batch brings to `quarantine`.
create or replace temp table new_quarantine as
select
    $workload as workload, batch.source, batch.uri as source_uri, quarantined.row as source_row,
    quarantined.error_code, quarantined.message, quarantined.raw
from quarantined
inner join batch using (object)
