-- Rows of some sources that still hold text, by table.
-- needs: feedback, interactions, objects, quarantine
-- parameters: $sources, $workload
-- makes: rows (table_name, rows)
select 'interactions' as table_name, count(*) as rows
from interactions
where workload = $workload and list_contains($sources::varchar[], source)
union all
select 'feedback', count(*)
from feedback
where workload = $workload
    and source_uri in (
        select uri from objects where workload = $workload and list_contains($sources::varchar[], source)
    )
union all
select 'quarantine', count(*)
from quarantine
where workload = $workload and list_contains($sources::varchar[], source) and raw is not null
