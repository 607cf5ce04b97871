-- The artefacts that a person may mean: by name (the current version), name@version, or the beginning of a version.
select node, name, version, path
from artefacts
where (name = $name and starts_with(version, $version) and ($version <> '' or is_current))
    or ($version = '' and length($name) >= 4 and starts_with(version, $name))
order by node
