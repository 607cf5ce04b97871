-- Ancestors whose content may be in an artefact. Of a release, those of its models: what its evaluation read, such as the champion
-- that it was compared with, is an ancestor too, but not in its weights. Of a dataset of conversations, not the dataset that its
-- splits follow: it has its own rows itself.
-- needs: artefacts, lineage_edges
-- makes: view weight_lineage (artefact, ancestor, depth)
create view weight_lineage as
with recursive conversations as (
    select node from artefacts where op = 'build_sft_dataset'
),
edges as (
    select child, parent
    from lineage_edges
    where (not starts_with(child, 'release:') or kind = 'model')
        and not (child in (select node from conversations) and parent in (select node from conversations))
),
paths(artefact, ancestor, depth) as (
    select child, parent, 1 from edges
    union
    select paths.artefact, edges.parent, paths.depth + 1
    from paths
    join edges on edges.child = paths.ancestor
    where paths.depth < 100
)
select artefact, ancestor, min(depth) as depth from paths group by artefact, ancestor
