-- Number of records read for a workload: rows of the table, records dropped at ingest, lines in quarantine.
-- needs: decisions_history, interactions, quarantine
-- parameters: $workload
-- makes: rows (records)
with in_table as (
    select count(*) as records from interactions where workload = $workload
),
dropped as (
    select coalesce(sum(coalesce(cast(detail ->> '$.records' as bigint), 1)), 0)::bigint as records
    from decisions_history
    where workload = $workload and stage = 'ingest' and not kept
),
in_quarantine as (
    select count(*) as records from quarantine where workload = $workload
)
select
    (select records from in_table) + (select records from dropped) + (select records from in_quarantine) as records
