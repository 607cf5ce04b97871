-- Days with rows whose feedback changed since they were cleaned.
-- needs: cleaned_interactions, row_feedback
-- makes: rows (dt)
select distinct dt
from cleaned_interactions
left join row_feedback using (interaction_id)
where row_feedback.value is distinct from cleaned_interactions.feedback
order by dt
