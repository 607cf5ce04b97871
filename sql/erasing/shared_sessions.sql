-- Rows of other users in sessions of the selected ones, which stay and may repeat their texts.
-- needs: known_interactions, selected
-- makes: rows (sessions, rows_of_others)
select count(distinct known_interactions.session_id) as sessions, count(*) as rows_of_others
from known_interactions
join (select distinct workload, session_id from selected where session_id is not null) as theirs using (workload, session_id)
anti join selected using (workload, interaction_id)
