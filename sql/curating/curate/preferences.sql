-- Preference rows: a prompt and two answers, of which people rejected one.
-- needs: candidates, cleaned_interactions, preferred
-- makes: rows (chosen_id, rejected_id, workload, dt, session_id, source, prompt, tools, chosen, rejected, chosen_feedback,
--     rejected_feedback)
select
    preferred.chosen_id, preferred.rejected_id, chosen.workload, chosen.dt, chosen.session_id, chosen.source,
    chosen.messages as prompt, chosen.tools, chosen.completion as chosen, rejected.completion as rejected,
    good.feedback_value as chosen_feedback, bad.feedback_value as rejected_feedback
from preferred
join cleaned_interactions as chosen on chosen.interaction_id = preferred.chosen_id
join cleaned_interactions as rejected on rejected.interaction_id = preferred.rejected_id
join candidates as good on good.interaction_id = preferred.chosen_id
join candidates as bad on bad.interaction_id = preferred.rejected_id
order by preferred.rejected_id
