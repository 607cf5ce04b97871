-- Everything in the lineage: versions of datasets, models and releases, slices of tables, external files.
-- needs: artefacts, lineage_nodes
-- makes: view nodes (node, kind, workload, name, version, digest, is_current, created_at, path)
create view nodes as
select
    found.node, found.kind, if(found.kind = 'external', null, split_part(found.name, '/', 1)) as workload,
    found.name, found.version, found.digest, artefacts.is_current, artefacts.created_at, artefacts.path
from lineage_nodes as found
left join artefacts using (node)
