-- Preference rows: the prompt, and two answers to it of which people turned one down.
select
    preferred.chosen_id, preferred.rejected_id, chosen.workload, chosen.dt, chosen.session_id, chosen.source,
    chosen.messages as prompt, chosen.tools, chosen.completion as chosen, rejected.completion as rejected,
    good.opinion as chosen_feedback, bad.opinion as rejected_feedback
from preferred
join cleaned_interactions as chosen on chosen.interaction_id = preferred.chosen_id
join cleaned_interactions as rejected on rejected.interaction_id = preferred.rejected_id
join entrants as good on good.interaction_id = preferred.chosen_id
join entrants as bad on bad.interaction_id = preferred.rejected_id
order by preferred.rejected_id
