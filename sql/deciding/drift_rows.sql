-- Values of the tests on the traffic of a release, oldest day first. $release empty: before there was a release.
-- needs: drift
-- parameters: $release
-- makes: rows (dt, window_days, test, value, bound, alarm, sessions)
select dt, window_days, test, value, bound, alarm, sessions
from drift
where release = $release and problem is null
qualify row_number() over (partition by dt, window_days, test order by ts desc) = 1
order by dt, test, window_days
