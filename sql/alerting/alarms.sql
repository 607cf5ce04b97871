-- Every alarm against a release's reference, oldest first. All of them: the first day of a change names it.
-- needs: drift
-- parameters: $release
-- makes: rows (*)
select *
from drift
where release = $release and alarm and value is not null
order by dt, test, window_days
