-- Gates of every release: required value, measured value and interval, what was compared, whether it passed, and why.
-- needs: release_texts
-- makes: table gates (workload, release, name, wanted, measured, low, high, passed, why, bound, judged_by, of_model,
--     against, measured_on, sampling, unit, counted, n, reason)
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
    nullif(gate ->> '$.why', '') as why,
    coalesce(gate ->> '$.bound', 'least') as bound,
    coalesce(gate ->> '$.judged_by', 'value') as judged_by,
    nullif(gate ->> '$.of', '') as of_model,
    nullif(gate ->> '$.against', '') as against,
    nullif(gate ->> '$.on', '') as measured_on,
    nullif(gate ->> '$.sampling', '') as sampling,
    nullif(gate ->> '$.unit', '') as unit,
    gate ->> '$.counted' as counted,
    cast(gate ->> '$.rows' as bigint) as n,
    nullif(gate ->> '$.reason', '') as reason
from listed
order by workload, release, name
