-- Days with rows whose feedback changed since they were cleaned. Emptied rows cannot be cleaned again: curation reads their
-- feedback.
-- needs: cleaned_interactions, interactions, row_feedback
-- makes: rows (dt)
select distinct dt
from cleaned_interactions
left join row_feedback using (interaction_id)
anti join (select interaction_id from interactions where emptied is not null) as emptied using (interaction_id)
where row_feedback.value is distinct from cleaned_interactions.feedback
order by dt
