-- Hashed users whose log lines an artefact was trained on: select * from users_in('math-tutor/sft_model').
-- needs: log_lines_in()
-- makes: macro users_in(artefact) as rows (user_hash, interactions, first_seen, last_seen)
create macro users_in(artefact) as table
select
    user_hash, count(distinct interaction_id) as interactions, min(ts) as first_seen, max(ts) as last_seen
from log_lines_in(artefact)
where interaction_id is not null
group by user_hash
order by interactions desc, user_hash
