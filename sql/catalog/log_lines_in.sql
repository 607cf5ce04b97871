-- Log lines that an artefact was trained on: select * from log_lines_in('math-tutor/sft_model'), of the current version. Add
-- @version for another. Weights hold rows of the training split only; a dataset of conversations shows all its splits, and
-- of its own rows only. Rows come in no order.
-- needs: artefacts, dataset_rows, interactions, named_nodes(), weight_lineage
-- makes: macro log_lines_in(artefact) as rows (artefact, dataset, split, row_id, interaction_id, source, source_uri,
--     source_row, user_hash, ts)
create macro log_lines_in(artefact) as table
with wanted_artefacts as (
    select node, artefacts.kind
    from named_nodes(artefact) as named
    left join artefacts using (node)
),
sources as (
    select wanted_artefacts.node as made, wanted_artefacts.kind, weight_lineage.ancestor as node
    from wanted_artefacts join weight_lineage on weight_lineage.artefact = wanted_artefacts.node
    union
    select node, kind, node from wanted_artefacts
)
select
    sources.made as artefact, dataset_rows.node as dataset, dataset_rows.split, dataset_rows.row_id,
    dataset_rows.interaction_id, interactions.source, interactions.source_uri, interactions.source_row,
    interactions.user_hash, interactions.ts
from dataset_rows
join sources using (node)
left join interactions using (interaction_id)
where dataset_rows.split = 'train' or sources.kind = 'dataset'
