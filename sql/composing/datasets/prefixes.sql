-- Every point of a conversation at which the assistant has just spoken, as the hash of all that was said up to there.
create or replace temp table beginnings as
with told as (
    select
        interaction_id, position, is_answer, role,
        md5(string_agg(identity, '') over (partition by interaction_id order by position)) as so_far
    from messages
)
select curated.session_id, told.interaction_id, told.position, told.is_answer, told.so_far
from told
join curated using (interaction_id)
where told.role = 'assistant'
