-- Every endpoint's log of approvals, withdrawals, promotions, rollbacks, nominations and named aliases; one row per entry.
-- needs: log_entries
-- makes: table approvals (workload, number, ts, action, release, digest, who, identity_from, reason, gates, replaces,
--     generation, candidate, champion, previous, alias, key, sha256, intact)
create table approvals as
select
    workload, number, ts, action, release, nullif(digest, '') as digest, who, identity_from,
    nullif(reason, '') as reason, gates, replaces, generation, candidate,
    champion, previous, alias, key, sha256, intact
from log_entries
order by workload, number
