-- The manifests that can be read as such, for the statements after this one. Not kept in the catalog.
create temp table manifests as
select path, cast(manifest as json) as manifest
from manifest_texts
where json_valid(manifest) and json_type(manifest) = 'OBJECT'
