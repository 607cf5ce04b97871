-- Everything that was made from a node, nearest first: select * from descendants('math-tutor/sft_dataset'). Of a table or an
-- external file: select * from descendants('math-tutor/feedback').
-- needs: lineage, named_nodes(), nodes
-- makes: macro descendants(identifier) as rows (origin, depth, descendant, kind, name, version, is_current)
create macro descendants(identifier) as table
select
    lineage.ancestor as origin, lineage.depth, lineage.artefact as descendant, nodes.kind, nodes.name, nodes.version,
    nodes.is_current
from lineage
join nodes on nodes.node = lineage.artefact
where lineage.ancestor in (select named.node from named_nodes(identifier) as named)
order by all
