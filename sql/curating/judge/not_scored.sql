-- Rows to send to the judge.
-- needs: texts_to_judge
-- makes: rows (interaction_id)
select interaction_id from texts_to_judge where not is_known order by draw
