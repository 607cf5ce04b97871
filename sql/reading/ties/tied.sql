-- Feedback with what it is tied to now, and whether that is news.
create or replace temp view tied as
select
    feedback_said.* exclude (given, telling, about) replace (
        ties.interaction_id as interaction_id, feedback_said.given as given_id, ties.tie as tie
    ),
    feedback_said.tie is distinct from ties.tie or feedback_said.interaction_id is distinct from ties.interaction_id as is_news
from feedback_said
left join ties using (workload, telling, about)
