-- What near-duplicates are judged by.
select interaction_id, new_turn, answer
from texts
