-- Records read for a workload: rows of the table, repeats of a record, and lines in quarantine.
-- $workload
with in_table as (
    select count(*) as records from interactions where workload = $workload
),
repeated as (
    select count(*) as records from decisions where workload = $workload and stage = 'ingest' and not kept
),
in_quarantine as (
    select count(*) as records from quarantine where workload = $workload
)
select
    (select records from in_table) + (select records from repeated) + (select records from in_quarantine) as records
