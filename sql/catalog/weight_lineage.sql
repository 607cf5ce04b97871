-- Ancestors whose content may be in an artefact. Of a release, those of its models: what its evaluation read, such as the champion
-- that it was compared with, is an ancestor too, but not in its weights.
-- needs: lineage, lineage_edges
-- makes: view weight_lineage (artefact, ancestor, depth)
create view weight_lineage as
with of_releases as (
    select child as artefact, parent as ancestor, 1 as depth
    from lineage_edges
    where starts_with(child, 'release:') and kind = 'model'
    union all
    select edges.child, lineage.ancestor, lineage.depth + 1
    from lineage_edges as edges
    join lineage on lineage.artefact = edges.parent
    where starts_with(edges.child, 'release:') and edges.kind = 'model'
)
select artefact, ancestor, depth from lineage where not starts_with(artefact, 'release:')
union all
select artefact, ancestor, min(depth) as depth from of_releases group by artefact, ancestor
