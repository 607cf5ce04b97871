-- Nodes that a name means: a node, workload/name (the current version), workload/name@version, or a version; the first digits of
-- a version do. A table or an external file without a version means all its slices or contents.
-- needs: nodes
-- makes: macro named_nodes(artefact) as rows (node)
create macro named_nodes(artefact) as table
select node
from nodes
where node = artefact
    or (
        name = split_part(artefact, '@', 1) and starts_with(version, split_part(artefact, '@', 2))
        and (contains(artefact, '@') or coalesce(is_current, true))
    )
    or (length(artefact) >= 4 and not contains(artefact, '/') and starts_with(version, artefact))
