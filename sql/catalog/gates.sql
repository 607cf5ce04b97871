-- Gates of every release: required value, measured value, whether it passed, and why.
-- needs: release_texts
-- makes: table gates (workload, release, name, wanted, measured, low, high, passed, why)
create table gates as
with listed as (
    select
        split_part(path, '/', 2) as workload, split_part(path, '/', 3) as release,
        unnest(cast(cast(release as json) -> '$.gates' as json[])) as gate
    from release_texts
    where json_valid(release)
)
select
    workload,
    release,
    gate ->> '$.name' as name,
    cast(gate ->> '$.wanted' as double) as wanted,
    cast(gate ->> '$.measured' as double) as measured,
    cast(gate ->> '$.low' as double) as low,
    cast(gate ->> '$.high' as double) as high,
    cast(gate ->> '$.passed' as boolean) as passed,
    nullif(gate ->> '$.why', '') as why
from listed
order by workload, release, name
