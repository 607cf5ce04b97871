-- Finds artefacts by name, with or without the workload (the current version), name@version, or the beginning of a version.
-- needs: artefacts
-- parameters: $name, $version
-- makes: rows (node, name, version, path)
select node, name, version, path
from artefacts
where ((name = $name or split_part(name, '/', 2) = $name) and starts_with(version, $version) and ($version <> '' or is_current))
    or ($version = '' and length($name) >= 4 and starts_with(version, $name))
order by node
