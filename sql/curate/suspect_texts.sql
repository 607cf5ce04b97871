-- The texts of the rows whose similarity must be known exactly.
select place, words_of(new_turn) as new_turn, words_of(answer) as answer
from texts
join standing using (interaction_id)
