-- All that takes part in the making of anything.
create view lineage_nodes as
select node, kind, name, version, digest from artefacts
union
select parent, kind, name, version, digest from lineage_edges where parent not in (select node from artefacts)
