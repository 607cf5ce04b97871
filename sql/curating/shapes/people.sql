-- How many people asked, where users are not known how many sessions.
-- needs: interactions
-- makes: rows (people)
select count(distinct coalesce(user_hash, session_id, interaction_id)) as people from interactions where emptied is null
