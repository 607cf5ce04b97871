-- Number of records of each object, and the days they belong to.
-- needs: batch, quarantined, skipped, staged, staged_feedback
-- makes: rows (uri, records, days)
with found as (
    select object, row, dt from staged
    union all
    select object, row, dt from staged_feedback
    union all
    select object, row, null from quarantined
    union all
    select object, row, null from skipped
)

select
    batch.uri,
    count(distinct found.row) as records,
    coalesce(list(distinct found.dt order by found.dt) filter (found.dt is not null), []) as days
from batch
left join found using (object)
group by batch.uri
