-- Rows of the table drift of a release, newest days first, for the page and the plots.
-- needs: drift
-- parameters: $days, $release
-- makes: rows (*)
select *
from drift
where release = $release and dt > (select max(dt) from drift where release = $release) - cast($days as integer)
order by dt desc, test, window_days
