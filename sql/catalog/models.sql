-- Every version of every model and drafter.
-- needs: artefacts
-- makes: view models (workload, name, version, is_current, created_at, op, bytes, digest, path, metrics, config, node)
create view models as
select workload, name, version, is_current, created_at, op, bytes, digest, path, metrics, config, node
from artefacts
where kind = 'model'
