-- Numbers of every artefact, one per row: of its manifest (step null), and of each step in its metrics.jsonl. Nested names are
-- joined by slashes; true and false are 1 and 0.
-- needs: artefacts, metric_name(), metrics_lines
-- makes: view metrics (node, kind, workload, name, version, is_current, step, metric, value)
create view metrics as
with stated as (
    select node, null::bigint as step, entry.fullkey, entry.type, entry.atom
    from artefacts, json_tree(artefacts.metrics) as entry
),
logged as (
    select artefacts.node, cast(lines.line ->> '$.step' as bigint) as step, entry.fullkey, entry.type, entry.atom
    from metrics_lines as lines
    join artefacts using (path), json_tree(lines.line) as entry
    where entry.fullkey <> '$.step'
),
numbers as (
    from stated
    union all
    from logged
)
select
    artefacts.node, artefacts.kind, artefacts.workload, artefacts.name, artefacts.version, artefacts.is_current,
    numbers.step, metric_name(numbers.fullkey) as metric,
    case numbers.type when 'BOOLEAN' then cast(numbers.atom = 'true' as double) else cast(numbers.atom as double) end as value
from numbers
join artefacts using (node)
where numbers.type in ('DOUBLE', 'UBIGINT', 'BIGINT', 'BOOLEAN')
