-- What was made from what: child was made from parent.
-- needs: lineage_edges
-- makes: view edges (child, parent, parent_kind, parent_name, parent_version)
create view edges as
select child, parent, kind as parent_kind, name as parent_name, version as parent_version
from lineage_edges
