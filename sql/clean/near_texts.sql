-- What near-duplicates are judged by, as words.
select interaction_id, words_of(new_turn) as new_turn, words_of(answer) as answer
from texts
