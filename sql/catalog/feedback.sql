-- Feedback with the user of the interaction that it is about.
-- needs: feedback_records, interactions
-- makes: view feedback (feedback_records.*, user_hash)
create view feedback as
select feedback_records.*, interactions.user_hash
from feedback_records
left join interactions
    on interactions.workload = feedback_records.workload and interactions.interaction_id = feedback_records.interaction_id
