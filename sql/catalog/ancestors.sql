-- Everything that an artefact was made from, nearest first: select * from ancestors('math-tutor/sft_model').
-- needs: lineage, named_nodes(), nodes
-- makes: macro ancestors(identifier) as rows (artefact, depth, ancestor, kind, name, version, is_current)
create macro ancestors(identifier) as table
select
    lineage.artefact, lineage.depth, lineage.ancestor, nodes.kind, nodes.name, nodes.version, nodes.is_current
from lineage
join nodes on nodes.node = lineage.ancestor
where lineage.artefact in (select named.node from named_nodes(identifier) as named)
order by all
