-- Every version of every dataset, and what its rows are called in SQL. A dataset of several kinds of files has a row for each.
-- needs: artefacts, listed_datasets
-- makes: table datasets (workload, name, version, is_current, relation, versions_relation, row_count, bytes, created_at, digest,
--     path, node)
create table datasets as
select
    artefacts.workload, artefacts.name, artefacts.version, artefacts.is_current,
    listed.relation, listed.versions_relation, listed.row_count,
    artefacts.bytes, artefacts.created_at, artefacts.digest, artefacts.path, artefacts.node
from artefacts
left join listed_datasets as listed using (path)
where artefacts.kind = 'dataset'
order by artefacts.name, artefacts.created_at, artefacts.version, listed.relation
