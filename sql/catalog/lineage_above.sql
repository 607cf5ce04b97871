-- All lineage edges above one node: what was made from it, nearest first.
-- needs: artefacts, lineage, lineage_edges
-- parameters: $node
-- makes: rows (depth, child, parent, kind, name, version, digest, op, created_at, path)
with reached as (
    select $node as node, 0 as depth
    union
    select artefact, depth from lineage where ancestor = $node
)
select
    reached.depth + 1 as depth, edges.child, edges.parent, made.kind, made.name, made.version, made.digest, made.op,
    made.created_at, made.path
from reached
join lineage_edges as edges on edges.parent = reached.node
left join artefacts as made on made.node = edges.child
order by reached.depth, edges.parent, edges.child
