-- Sessions that lie in two splits: there must be none.
select count(*)
from (select session_id from sampled where chosen group by session_id having count(distinct split) > 1)
