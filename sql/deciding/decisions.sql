-- A workload's decisions about retraining, oldest first; of a decision that was written twice, the settled row.
-- needs: retraining_decisions
-- makes: rows (*)
select *
from retraining_decisions
qualify row_number() over (partition by decision_id order by settled_ts desc nulls last, run_id desc nulls last) = 1
order by ts, decision_id
