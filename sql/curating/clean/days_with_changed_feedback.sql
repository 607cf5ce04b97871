-- Days with rows about which people said something else since they were cleaned.
select distinct dt
from cleaned_interactions
left join verdicts using (interaction_id)
where verdicts.value is distinct from cleaned_interactions.feedback
order by dt
