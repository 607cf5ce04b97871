-- The texts of the rows whose similarity must be known exactly, best first.
select new_turn, answer
from texts
join standing using (interaction_id)
order by place
