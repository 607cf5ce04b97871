-- Sources all of whose records are in quarantine, or whose objects could not be read. What retention took is no loss.
-- needs: feedback, interactions, objects, quarantine, retired
-- parameters: $sources, $workload
-- makes: rows (source, objects, share, code, message)
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
