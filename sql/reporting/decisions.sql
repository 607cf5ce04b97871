-- The newest decisions about retraining; of a decision that was written twice, the settled row.
-- needs: retraining_decisions
-- parameters: $count
-- makes: rows (ts, cause, cause_text, action, why, dry_run, outcome, cost_s, money, gain)
select ts, cause, cause_text, action, why, coalesce(dry_run, false) as dry_run, outcome, cost_s, money, gain
from retraining_decisions
qualify row_number() over (partition by decision_id order by settled_ts desc nulls last, run_id desc nulls last) = 1
order by ts desc
limit cast($count as integer)
