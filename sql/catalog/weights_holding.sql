-- Models and releases trained on a user's or an interaction's text: select * from weights_holding('<user hash or interaction
-- id>').
-- needs: artefacts, dataset_rows, interactions, weight_lineage
-- makes: macro weights_holding(identifier) as rows (artefact, kind, is_current, dataset, interactions)
create macro weights_holding(identifier) as table
with theirs as (
    select interaction_id from interactions where user_hash = identifier or interaction_id = identifier
),
datasets as (
    select node, count(distinct interaction_id) as interactions
    from dataset_rows
    where split = 'train' and (interaction_id in (select interaction_id from theirs) or interaction_id = identifier)
    group by node
)
select artefacts.node as artefact, artefacts.kind, artefacts.is_current, datasets.node as dataset, datasets.interactions
from datasets
join weight_lineage on weight_lineage.ancestor = datasets.node
join artefacts on artefacts.node = weight_lineage.artefact
where artefacts.kind in ('model', 'release')
union all
select
    error(concat('no user and no interaction of the lake is ', identifier, ': give the whole user_hash or interaction_id')),
    null, null, null, null
where not exists (from theirs) and not exists (from dataset_rows where interaction_id = identifier)
order by all
