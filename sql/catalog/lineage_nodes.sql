-- All nodes of the lineage graph: artefacts, table slices and external files.
-- needs: artefacts, lineage_edges
-- makes: view lineage_nodes (node, kind, name, version, digest)
create view lineage_nodes as
select node, kind, name, version, digest from artefacts
union
select parent, kind, name, version, digest from lineage_edges where parent not in (select node from artefacts)
