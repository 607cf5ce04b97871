-- Nodes that a name means: a node, workload/name (the current version), workload/name@version, or a version; the first digits of
-- a version do. A table or an external file without a version means all its slices or contents. A name that means none is an
-- error, for no rows would be an answer.
-- needs: nodes
-- makes: macro named_nodes(artefact) as rows (node)
create macro named_nodes(artefact) as table
with named as (
    select node
    from nodes
    where node = artefact
        or (
            name = split_part(artefact, '@', 1) and starts_with(version, split_part(artefact, '@', 2))
            and (contains(artefact, '@') or coalesce(is_current, true))
        )
        or (length(artefact) >= 4 and not contains(artefact, '/') and starts_with(version, artefact))
),

alike as (
    select string_agg(distinct name, ', ' order by name) as names
    from nodes
    where ends_with(name, concat('/', artefact))
)

select node from named
union all
select error(concat(
    'nothing in the lake is named ', artefact, ': ', 'write ' || names || ', or ',
    'give workload/name of a current version, workload/name@version or the first digits of a version (`from nodes` lists them)'
))
from alike
where not exists (from named)
