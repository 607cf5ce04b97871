-- Rows of other users in sessions of the selected ones, which stay and may repeat their texts.
-- needs: interactions, selected
-- makes: rows (sessions, rows_of_others)
select count(distinct interactions.session_id) as sessions, count(*) as rows_of_others
from interactions
join (select distinct workload, session_id from selected where session_id is not null) as theirs using (workload, session_id)
anti join selected using (workload, interaction_id)
