-- What some of the other interactions say, to know the phrases that everybody uses.
-- needs: interactions, selected
-- makes: rows (text)
select concat(messages, chr(10), completion) as text
from (
    select workload, interaction_id, messages, completion from interactions using sample reservoir (1000 rows) repeatable (1)
) as drawn
anti join selected using (workload, interaction_id)
