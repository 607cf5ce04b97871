-- Which release was champion when; one row for each period.
-- needs: approvals
-- makes: table champions (workload, release, digest, served_from, served_until, began_by, ended_by, promoted_by,
--     identity_from, reason, replaced_by, replaced_because, entry)
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
