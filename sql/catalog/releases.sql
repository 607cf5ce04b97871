-- Every finished release: what it serves, how it was decided, which aliases point to it now.
-- needs: approvals, artefacts, endpoint_aliases, release_texts, tainted
-- makes: table releases (workload, version, digest, created_at, is_current, passed, is_candidate, is_champion, is_previous,
--     aliases, standing, decided_by, approvals, target, target_version, target_digest, drafter, drafter_version, drafter_digest,
--     architecture, num_speculative_tokens, erased_rows, path)
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
        artefacts.created_at, artefacts.is_current, content, artefacts.path
    from artefacts
    join contents using (path)
)
select
    named.workload,
    named.version,
    named.digest,
    named.created_at,
    named.is_current,
    (select bool_and(cast(gate ->> '$.passed' as boolean)) from unnest(cast(content -> '$.gates' as json[])) as of(gate)) as passed,
    coalesce(named.version = aliases.candidate, false) as is_candidate,
    coalesce(named.version = aliases.champion, false) as is_champion,
    coalesce(named.version = aliases.previous, false) as is_previous,
    list_transform(
        list_filter(coalesce(aliases.named, []), lambda each: each.release = named.version), lambda each: each.alias
    ) as aliases,
    decided.standing,
    decided.decided_by,
    coalesce(decided.approvals, 0) as approvals,
    content ->> '$.target.name' as target,
    content ->> '$.target.version' as target_version,
    content ->> '$.target.digest' as target_digest,
    content ->> '$.speculator.name' as drafter,
    content ->> '$.speculator.version' as drafter_version,
    content ->> '$.speculator.digest' as drafter_digest,
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
