-- Connected components of the table `edges` (a, b): each node with the least node it is connected to.
-- Every round carries the least label known to the neighbours of the nodes that changed.
with recursive
neighbours(node, other) as (
    select a, b from edges
    union
    select b, a from edges
),
components(node, label) using key (node) as (
    select node, least(node, min(other)) from neighbours group by node
    union
    select neighbours.other, min(components.label)
    from components
    join neighbours using (node)
    join recurring.components as known on known.node = neighbours.other
    where components.label < known.label
    group by neighbours.other
)
select node, label from components
