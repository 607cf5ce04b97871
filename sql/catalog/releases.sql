-- name: approvals
-- Every endpoint's log of approvals, withdrawals, promotions, rollbacks, nominations and named aliases; one row per entry.
create table approvals as
select
    workload, number, ts, action, release, nullif(digest, '') as digest, who, identity_from,
    nullif(reason, '') as reason, gates, replaces, generation, candidate,
    champion, previous, alias, key, sha256, intact
from log_entries
order by workload, number

-- name: champions
-- Which release was champion when; one row for each period.
create table champions as
with changes as (
    select
        *, lag(champion) over (partition by workload order by number) as champion_before
    from approvals
),
begun as (
    select
        workload, number, champion as release, digest, action, ts, who, identity_from, reason
    from changes
    where champion is not null and champion is distinct from champion_before
)
select
    workload, release, digest, ts as served_from,
    lead(ts) over later as served_until,
    action as began_by,
    lead(action) over later as ended_by,
    who as promoted_by, identity_from, reason,
    lead(who) over later as replaced_by,
    lead(reason) over later as replaced_because,
    number as entry
from begun
window later as (partition by workload order by number)
order by workload, number

-- name: tainted
-- Models and releases whose weights learnt rows that were erased since, by the dataset that lost the rows.
create table tainted as
select
    taints.artefact, artefacts.kind, artefacts.workload, artefacts.name, artefacts.version, artefacts.is_current, taints.dataset,
    taints.erased_rows, taints.last_erased
from taints
join artefacts on artefacts.node = taints.artefact
order by artefacts.kind, artefacts.name, artefacts.created_at, taints.dataset

-- name: releases
-- Every finished release: what it serves, how it was decided, which aliases point to it now.
create table releases as
with contents as (
    select path, cast(release as json) as content
    from release_texts
    where json_valid(release)
),
decisions_on as (
    select workload, release, number, who, if(action = 'approved', 'approved', 'withdrawn') as standing
    from approvals
    where action in ('approved', 'withdrawn')
    union all
    select workload, replaces, number, who, 'withdrawn'
    from approvals
    where action = 'rolled back'
),
decided as (
    select
        workload, release,
        arg_max(standing, number) as standing,
        arg_max(who, number) as decided_by,
        count(*) filter (standing = 'approved') as approvals
    from decisions_on
    group by workload, release
),
named as (
    select
        split_part(artefacts.path, '/', 2) as workload, split_part(artefacts.path, '/', 3) as version, artefacts.digest,
        artefacts.created_at, artefacts.is_current, content, artefacts.path,
        (select bool_and(cast(gate ->> '$.passed' as boolean)) from unnest(cast(content -> '$.gates' as json[])) as of(gate)) as passed
    from artefacts
    join contents using (path)
)
select
    named.workload, named.version, named.digest, named.created_at, named.is_current, named.passed,
    coalesce(named.version = aliases.candidate and coalesce(named.passed, true), false) as is_candidate,
    coalesce(named.version = aliases.champion, false) as is_champion,
    coalesce(named.version = aliases.previous, false) as is_previous,
    list_transform(
        list_filter(coalesce(aliases.named, []), lambda each: each.release = named.version), lambda each: each.alias
    ) as aliases,
    decided.standing,
    decided.decided_by,
    coalesce(decided.approvals, 0) as approvals,
    content ->> '$.target.name' as target, content ->> '$.target.version' as target_version,
    content ->> '$.target.digest' as target_digest, content ->> '$.speculator.name' as drafter,
    content ->> '$.speculator.version' as drafter_version, content ->> '$.speculator.digest' as drafter_digest,
    if(content ->> '$.speculator.name' is null, null, content ->> '$.architecture') as architecture,
    if(
        content ->> '$.speculator.name' is null, null, cast(content ->> '$.num_speculative_tokens' as integer)
    ) as num_speculative_tokens,
    coalesce((
        select max(tainted.erased_rows) from tainted
        where tainted.kind = 'release' and tainted.workload = named.workload and tainted.version = named.version
    ), 0) as erased_rows,
    named.path
from named
left join decided on decided.workload = named.workload and decided.release = named.version
left join endpoint_aliases as aliases on aliases.workload = named.workload
order by named.workload, named.created_at, named.version

-- name: gates
-- Gates of every release: required value, measured value and interval, what was compared, whether it passed, and why.
create table gates as
with listed as (
    select
        split_part(path, '/', 2) as workload, split_part(path, '/', 3) as release,
        unnest(cast(cast(release as json) -> '$.gates' as json[])) as gate
    from release_texts
    where json_valid(release)
)
select
    workload, release, gate ->> '$.name' as name,
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
