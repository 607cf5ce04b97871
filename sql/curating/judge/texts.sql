-- What the judge is shown of some rows.
select workload, dt, interaction_id, content_sha256, messages, completion
from cleaned_interactions
where list_contains($ids, interaction_id)
order by interaction_id
