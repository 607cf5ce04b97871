-- The log of every endpoint: approvals, withdrawals, promotions, rollbacks and nominations, one row an entry.
create table approvals as
select
    workload, number, ts, action, release, nullif(digest, '') as digest, who, identity_from,
    nullif(reason, '') as reason, gates, replaces, generation, candidate,
    champion, previous, sha256, intact
from log_entries
order by workload, number
