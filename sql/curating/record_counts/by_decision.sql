-- Every record of a workload by what became of it: read = kept + dropped + quarantined.
-- $workload, $curate_version
with in_quarantine as (
    select 'quarantined' as fate, 'ingest' as stage, error_code as rule, count(*) as records
    from quarantine
    where workload = $workload
    group by error_code
),
dropped as (
    -- one decision of ingest may stand for many records
    select
        'dropped' as fate, stage, rule,
        sum(case when stage = 'ingest' then coalesce(cast(detail ->> '$.records' as bigint), 1) else 1 end)::bigint
            as records
    from decisions_history
    where workload = $workload
      and not kept
      and (stage in ('ingest', 'clean') or (stage = 'curate' and version = $curate_version))
    group by stage, rule
),
kept as (
    select 'kept' as fate, 'curate' as stage, 'kept' as rule, count(*) as records
    from decisions_history
    where workload = $workload and kept and stage = 'curate' and version = $curate_version
)
select fate, stage, rule, records from in_quarantine
union all
select fate, stage, rule, records from dropped
union all
select fate, stage, rule, records from kept
order by fate, records desc, stage, rule
