-- Every finished dataset, model and release, read from its manifest.json.
-- needs: manifests, pointers
-- makes: table artefacts (kind, workload, name, version, is_current, created_at, op, digest, path, bytes, metrics, config,
--     recipe_digest, code_revision, code_dirty, environment, node)
create table artefacts as
select
    manifest ->> '$.kind' as kind,
    split_part(manifest ->> '$.name', '/', 1) as workload,
    manifest ->> '$.name' as name,
    manifest ->> '$.version' as version,
    coalesce(pointers.version is not null, false) as is_current,
    cast(manifest ->> '$.created_at' as timestamptz) as created_at,
    manifest ->> '$.op' as op,
    manifest ->> '$.digest' as digest,
    manifests.path,
    cast(list_sum(cast(manifest -> '$.files[*].bytes' as bigint[])) as bigint) as bytes,
    manifest -> '$.metrics' as metrics,
    manifest -> '$.config' as config,
    manifest ->> '$.recipe_digest' as recipe_digest,
    manifest ->> '$.code.revision' as code_revision,
    cast(manifest ->> '$.code.dirty' as boolean) as code_dirty,
    manifest -> '$.environment' as environment,
    printf('%s:%s@%s', manifest ->> '$.kind', manifest ->> '$.name', manifest ->> '$.version') as node
from manifests
left join pointers
    on pointers.home = regexp_replace(manifests.path, '/[^/]+$', '') and pointers.version = manifest ->> '$.version'
order by kind, name, created_at
