-- Rows without a user in sessions that, of all users, only the asked ones take part in: their texts are the asked users'.
-- needs: asked, known_interactions, selected
-- makes: rows into selected (workload, dt, interaction_id, request_id, alias_id, trace_id, session_id, user_hash, source,
--     source_uri, source_row, ts, content_sha256, because)
insert into selected by name
with theirs as (
    select distinct workload, session_id
    from selected
    where session_id is not null and user_hash in (select sha256 from asked where kind = 'user')
),
others as (
    select distinct known_interactions.workload, known_interactions.session_id
    from known_interactions
    join theirs using (workload, session_id)
    where known_interactions.user_hash not in (select sha256 from asked where kind = 'user')
)
select
    known_interactions.workload, dt, interaction_id, request_id, alias_id, trace_id, known_interactions.session_id, user_hash, source,
    source_uri, source_row, ts, content_sha256, 'same session' as because
from known_interactions
join theirs using (workload, session_id)
anti join others using (workload, session_id)
anti join selected using (workload, interaction_id)
where user_hash is null
