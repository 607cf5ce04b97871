-- Gives feedback inside a record whose id does not identify it the record's own id.
-- needs: loose_ids, staged_feedback
-- makes: update of staged_feedback (interaction_id)
update staged_feedback
set interaction_id = own_id
from loose_ids
where staged_feedback.object = loose_ids.object and staged_feedback.row = loose_ids.row
    and staged_feedback.interaction_id = loose_ids.interaction_id
