-- The batch's rows for `quarantine`.
-- needs: batch, quarantined
-- parameters: $workload
-- makes: temp table new_quarantine (workload, source, source_uri, source_row, error_code, message, raw)
create or replace temp table new_quarantine as
select
    $workload as workload, batch.source, batch.uri as source_uri, quarantined.row as source_row,
    quarantined.error_code, quarantined.message, quarantined.raw
from quarantined
inner join batch using (object)
