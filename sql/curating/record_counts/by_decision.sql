-- Every record of a workload by outcome: read = kept + dropped + quarantined. One decision of ingest may count for many
-- records.
-- needs: decisions_history, quarantine
-- parameters: $curate_version, $workload
-- makes: rows (outcome, stage, rule, records)
with in_quarantine as (
    select 'quarantined' as outcome, 'ingest' as stage, error_code as rule, count(*) as records
    from quarantine
    where workload = $workload
    group by error_code
),
dropped as (
    -- one decision of ingest may stand for many records
    select
        'dropped' as outcome, stage, rule,
        sum(case when stage = 'ingest' then coalesce(cast(detail ->> '$.records' as bigint), 1) else 1 end)::bigint
            as records
    from decisions_history
    where workload = $workload
      and not kept
      and (stage in ('ingest', 'clean') or (stage = 'curate' and version = $curate_version))
    group by stage, rule
),
kept as (
    select 'kept' as outcome, 'curate' as stage, 'kept' as rule, count(*) as records
    from decisions_history
    where workload = $workload and kept and stage = 'curate' and version = $curate_version
)
select outcome, stage, rule, records from in_quarantine
union all
select outcome, stage, rule, records from dropped
union all
select outcome, stage, rule, records from kept
order by outcome, records desc, stage, rule
