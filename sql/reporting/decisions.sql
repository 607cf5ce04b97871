-- The newest decisions about retraining.
-- needs: retraining_decisions
-- parameters: $count
-- makes: rows (ts, cause, cause_text, action, why, dry_run, outcome, cost_s, money, gain)
select ts, cause, cause_text, action, why, coalesce(dry_run, false) as dry_run, outcome, cost_s, money, gain
from retraining_decisions
order by ts desc
limit cast($count as integer)
