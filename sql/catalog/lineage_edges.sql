-- Edges from each artefact (child) to what it was made from (parent): artefacts, table slices, external files.
-- needs: manifests
-- makes: table lineage_edges (child, parent, kind, name, version, digest)
create table lineage_edges as
with listed as (
    select
        printf('%s:%s@%s', manifest ->> '$.kind', manifest ->> '$.name', manifest ->> '$.version') as child,
        split_part(manifest ->> '$.name', '/', 1) as workload,
        unnest(cast(manifest -> '$.inputs' as json[])) as input
    from manifests
),
named as (
    select
        child,
        input ->> '$.kind' as kind,
        input ->> '$.digest' as digest,
        case
            when input ->> '$.kind' = 'table' and not contains(input ->> '$.name', '/')
                then workload || '/' || (input ->> '$.name')
            else input ->> '$.name'
        end as name,
        coalesce(nullif(input ->> '$.version', ''), (input ->> '$.digest')[1:12]) as version
    from listed
)
select child, printf('%s:%s@%s', kind, name, version) as parent, kind, name, version, digest
from named
order by child, parent
