-- All ancestors of each artefact with their depth; 1 is a direct parent. Digests bind parents, so there are no cycles.
-- needs: lineage_edges
-- makes: view lineage (artefact, ancestor, depth)
create view lineage as
with recursive paths(artefact, ancestor, depth) as (
    select child, parent, 1 from lineage_edges
    union
    select paths.artefact, lineage_edges.parent, paths.depth + 1
    from paths
    join lineage_edges on lineage_edges.child = paths.ancestor
    where paths.depth < 100
)
select artefact, ancestor, min(depth) as depth from paths group by artefact, ancestor
