-- name: by_decision
-- Every record of a workload by outcome: read = kept + dropped + quarantined. One decision of ingest may count for many
-- records.
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

-- name: records_read
-- Number of records read for a workload: rows of the table, records dropped at ingest, lines in quarantine.
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

-- name: records_elsewhere
-- Number of records in a workload's logs that belong to other workloads.
select count(*) as records
from interactions
where workload <> $workload and source_uri in (select uri from objects where workload = $workload)

-- name: lost_sources
-- Sources all of whose records are in quarantine, or whose objects could not be read. What retention took is no loss.
with sized as (
    select source, count(*) as objects, sum(bytes) / greatest(sum(sum(bytes)) over (), 1) as share,
        max(problem) as problem, coalesce(sum(rows), 0) as records
    from objects
    where workload = $workload and list_contains($sources, source)
    group by source
),
alive as (
    select source from interactions where workload = $workload
    union
    select source from retired where workload = $workload
    union
    select objects.source from feedback inner join objects on objects.uri = feedback.source_uri and objects.workload = $workload
),
codes as (
    select source, error_code, min(message) as message, count(distinct (source_uri, source_row)) as records
    from quarantine
    where workload = $workload
    group by source, error_code
),
reasons as (
    select source, arg_max(error_code, records) as code, arg_max(message, records) as message, sum(records) as records
    from codes
    group by source
)
select
    sized.source, sized.objects, sized.share, coalesce(reasons.code, 'unreadable') as code,
    coalesce(reasons.message, sized.problem) as message
from sized
left join reasons using (source)
where not exists (select 1 from alive where alive.source = sized.source)
    and coalesce(reasons.records, 0) >= sized.records
    and coalesce(reasons.message, sized.problem, '') <> ''
order by sized.share desc, sized.source
