-- All lineage edges behind one artefact, nearest first.
-- needs: artefacts, lineage, lineage_edges
-- parameters: $node
-- makes: rows (depth, child, parent, kind, name, version, digest, op, created_at, path)
with reached as (
    select $node as node, 0 as depth
    union
    select ancestor, depth from lineage where artefact = $node
)
select
    reached.depth + 1 as depth, edges.child, edges.parent, edges.kind, edges.name, edges.version, edges.digest,
    artefacts.op, artefacts.created_at, parents.path
from reached
join lineage_edges as edges on edges.child = reached.node
left join artefacts on artefacts.node = edges.child
left join artefacts as parents on parents.node = edges.parent
order by reached.depth, edges.child, edges.parent
