-- The suspects' texts, best row first.
-- needs: texts_to_compare
-- makes: rows (new_turn, answer)
select new_turn, answer
from texts_to_compare
order by place
