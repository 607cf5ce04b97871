-- Number of sessions in more than one split; must be 0.
-- needs: sampled
-- makes: rows (count_star)
select count(*)
from (select session_id from sampled where copies > 0 group by session_id having count(distinct split) > 1)
