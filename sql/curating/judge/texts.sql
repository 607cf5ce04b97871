-- The messages and answers to show to the judge.
-- needs: cleaned_interactions
-- parameters: $ids
-- makes: rows (workload, dt, interaction_id, content_sha256, messages, completion)
select workload, dt, interaction_id, content_sha256, messages, completion
from cleaned_interactions
where list_contains($ids, interaction_id)
order by interaction_id
