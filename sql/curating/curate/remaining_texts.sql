-- The texts that are embedded, best row first: the new turn and the answer.
-- needs: texts_to_compare
-- makes: rows (text)
select new_turn || chr(10) || coalesce(answer, '') as text
from texts_to_compare
order by place
