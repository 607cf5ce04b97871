-- name: alarms
-- Every alarm against a release's reference, oldest first. All of them: the first day of a change names it.
select *
from drift
where release = $release and alarm and value is not null
order by dt, test, window_days

-- name: held_by_budget
-- Decisions about retraining in which a budget was a reason, oldest first.
select decision_id, ts, cause, why, options
from retraining_decisions
where not coalesce(dry_run, false) and (why like '%automation.decide.budget.%' or options like '%automation.decide.budget.%')
order by ts, decision_id
