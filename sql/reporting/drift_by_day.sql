-- The smallest p of each test on each of the newest days that were compared with a release, and whether any window alarmed.
-- needs: drift
-- parameters: $days, $release
-- makes: rows (dt, test, p, value, alarm, compared)
select
    dt,
    test,
    min(p) as p,
    arg_max(value, coalesce(1 - p, value)) as value,
    coalesce(bool_or(alarm), false) as alarm,
    count(value) > 0 as compared
from drift
where release = $release and dt > (select max(dt) from drift where release = $release) - cast($days as integer)
group by dt, test
order by dt, test
