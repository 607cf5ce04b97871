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
    workload,
    release,
    digest,
    ts as served_from,
    lead(ts) over later as served_until,
    action as began_by,
    lead(action) over later as ended_by,
    who as promoted_by,
    identity_from,
    reason,
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

-- name: release_comments
-- Comments of the release relations and their columns: select * from duckdb_columns() where table_name = 'releases'.
comment on table approvals is 'Log of every endpoint, one row per entry: approvals, withdrawals, promotions, rollbacks, nominations, named aliases. Entries are never changed';
comment on column approvals.workload is 'workload of the endpoint';
comment on column approvals.number is 'number of the entry in its endpoint''s log, from 1';
comment on column approvals.ts is 'time of the entry';
comment on column approvals.action is 'nominated, approved, promoted, named or unnamed (a further alias), withdrawn, rolled back, or found (the endpoint''s file named a release without an entry)';
comment on column approvals.release is 'version of the release; for a rollback, the release that serves again';
comment on column approvals.digest is 'digest of the release''s files at that time';
comment on column approvals.who is 'person or program that did it';
comment on column approvals.identity_from is 'source of that name: MILLRACE_USER, git config user.email, system account, USER, recipe, pipeline, the endpoint''s file';
comment on column approvals.reason is 'text of --reason; null without one';
comment on column approvals.gates is 'the release''s gates at that time';
comment on column approvals.replaces is 'the champion that a promotion or rollback replaced';
comment on column approvals.generation is 'number of the endpoint''s changes, including this one';
comment on column approvals.candidate is 'the endpoint''s candidate after the entry';
comment on column approvals.champion is 'the endpoint''s champion after the entry';
comment on column approvals.previous is 'the endpoint''s previous champion after the entry';
comment on column approvals.alias is 'the further alias that the entry moved, such as canary; null for other entries';
comment on column approvals.key is 'id of the key that signed the entry; null where none did';
comment on column approvals.sha256 is 'digest of the entry; the next entry includes it';
comment on column approvals.intact is 'whether the entry is unchanged and follows the entry before it';
comment on table champions is 'Which release was champion when: one row per period';
comment on column champions.workload is 'workload of the endpoint';
comment on column champions.release is 'version of the release';
comment on column champions.digest is 'digest of its files when it became champion';
comment on column champions.served_from is 'when it became champion';
comment on column champions.served_until is 'when another release replaced it; null for the present champion';
comment on column champions.began_by is 'promoted, rolled back (it served again), or found (the log began later)';
comment on column champions.ended_by is 'promoted (a newer release replaced it) or rolled back; null for the present champion';
comment on column champions.promoted_by is 'who made it champion';
comment on column champions.identity_from is 'source of that name';
comment on column champions.reason is 'why, where a reason was given';
comment on column champions.replaced_by is 'who ended it';
comment on column champions.replaced_because is 'why, where a reason was given';
comment on column champions.entry is 'number of the entry in approvals that began it';
comment on table releases is 'Every finished release: what it serves, how it was decided, which aliases point to it';
comment on column releases.workload is 'workload of the release';
comment on column releases.version is 'first 12 hex digits of a digest over operation, code, settings and inputs';
comment on column releases.digest is 'digest of its files';
comment on column releases.created_at is 'when it was finished';
comment on column releases.is_current is 'whether it is the current version: the last run made or confirmed it';
comment on column releases.passed is 'whether all gates passed when the release was made';
comment on column releases.is_candidate is 'whether the endpoint''s candidate is this release';
comment on column releases.is_champion is 'whether the endpoint serves it';
comment on column releases.is_previous is 'whether it was the champion before the present one';
comment on column releases.aliases is 'further aliases that name it, such as canary';
comment on column releases.standing is 'last decision: approved or withdrawn (a rollback withdraws the release it replaces); null: none yet';
comment on column releases.decided_by is 'person or program that decided';
comment on column releases.approvals is 'number of approvals it ever had';
comment on column releases.target is 'name of the model that is served';
comment on column releases.target_version is 'its version';
comment on column releases.target_digest is 'digest of its files';
comment on column releases.drafter is 'name of the draft model; null where there is none';
comment on column releases.drafter_version is 'its version';
comment on column releases.drafter_digest is 'digest of its files';
comment on column releases.architecture is 'kind of the drafter';
comment on column releases.num_speculative_tokens is 'tokens that the drafter proposes at a time';
comment on column releases.erased_rows is 'rows that its weights learnt and that millrace forget erased since; 0: not tainted';
comment on column releases.path is 'its directory, relative to the lake';
comment on table tainted is 'Models and releases whose weights learnt rows that were erased since, by the dataset that lost them';
comment on column tainted.artefact is 'node of the model or release: kind:workload/name@version';
comment on column tainted.kind is 'model or release';
comment on column tainted.workload is 'its workload';
comment on column tainted.name is 'its name';
comment on column tainted.version is 'its version';
comment on column tainted.is_current is 'whether it is the current version';
comment on column tainted.dataset is 'node of the dataset that lost the rows';
comment on column tainted.erased_rows is 'rows of its training split that were erased';
comment on column tainted.last_erased is 'time of the last erasure';
comment on table gates is 'The gates of every release, as measured when it was made';
comment on column gates.workload is 'workload of the release';
comment on column gates.release is 'version of the release';
comment on column gates.name is 'the gate: a key of release.gates; for suites, with the suite after a slash';
comment on column gates.wanted is 'the bound; see the column bound';
comment on column gates.measured is 'measured value; null if it was not measured';
comment on column gates.low is 'lower end of the 95 % interval; null where none was measured';
comment on column gates.high is 'upper end of the 95 % interval';
comment on column gates.passed is 'whether the measured value passed';
comment on column gates.why is 'a sentence with number, interval and bound';
comment on column gates.bound is 'least: the judged number must reach wanted; most: it may not exceed it';
comment on column gates.judged_by is 'the number that must meet the bound: value, or the low or high end of the interval';
comment on column gates.of_model is 'the model in question, by its role in the evaluation, or the drafter';
comment on column gates.against is 'what it was compared with';
comment on column gates.measured_on is 'held-out sessions, or the name of an evaluation suite';
comment on column gates.sampling is 'how answers were sampled; null for likelihoods';
comment on column gates.unit is 'unit of the measured value';
comment on column gates.counted is 'what n counts: rows, prompts or items';
comment on column gates.n is 'number of rows, prompts or items measured';
comment on column gates.reason is 'why it was not measured, or why there is nothing to compare'
