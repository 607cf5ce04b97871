-- Decisions about retraining in which a budget was a reason, oldest first.
-- needs: retraining_decisions
-- makes: rows (decision_id, ts, cause, why, options)
select decision_id, ts, cause, why, options
from retraining_decisions
where not coalesce(dry_run, false) and (why like '%automation.decide.budget.%' or options like '%automation.decide.budget.%')
order by ts, decision_id
