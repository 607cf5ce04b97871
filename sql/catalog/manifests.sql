-- Manifests that parse as JSON. A temporary view for building the catalog.
-- needs: manifest_texts
-- makes: temp table manifests (path, manifest)
create temp table manifests as
select path, cast(manifest as json) as manifest
from manifest_texts
where json_valid(manifest) and json_type(manifest) = 'OBJECT'
