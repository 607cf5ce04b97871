-- Feedback with its tie, and whether that changed.
-- needs: feedback_by_id, ties
-- makes: temp view tied (feedback_by_id.*, has_changed)
create or replace temp view tied as
select
    feedback_by_id.* exclude (own_interaction_id, id_rank, named_id) replace (
        ties.interaction_id as interaction_id, feedback_by_id.own_interaction_id as given_id, ties.tie as tie
    ),
    feedback_by_id.tie is distinct from ties.tie or feedback_by_id.interaction_id is distinct from ties.interaction_id as has_changed
from feedback_by_id
left join ties using (workload, id_rank, named_id)
