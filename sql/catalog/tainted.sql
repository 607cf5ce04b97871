-- Models and releases whose weights learnt rows that were erased since, by the dataset that lost the rows.
-- needs: artefacts, taints
-- makes: table tainted (artefact, kind, workload, name, version, is_current, dataset, erased_rows, last_erased)
create table tainted as
select
    taints.artefact, artefacts.kind, artefacts.workload, artefacts.name, artefacts.version, artefacts.is_current, taints.dataset,
    taints.erased_rows, taints.last_erased
from taints
join artefacts on artefacts.node = taints.artefact
order by artefacts.kind, artefacts.name, artefacts.created_at, taints.dataset
