-- Sessions of the answers with their user, as the splits need them.
-- needs: answered, interactions
-- makes: temp table training_conversations (session_id, user_hash)
create or replace temp table training_conversations as
select answered.session_id, arg_min(interactions.user_hash, (interactions.ts, interaction_id)) filter (
    where interactions.user_hash is not null) as user_hash
from answered
join interactions using (interaction_id)
group by answered.session_id
