-- Interactions that the asked hashes mean: of a user, a session, or themselves.
-- needs: asked, known_interactions
-- parameters: $user_hash_key
-- makes: temp table selected (*, because)
create or replace temp table selected as
with hashed as (
    select
        workload, dt, interaction_id, request_id, alias_id, trace_id, session_id, user_hash, source, source_uri, source_row, ts,
        content_sha256,
        if('session' in (select kind from asked), sha256(concat($user_hash_key, chr(31), session_id)), null) as session,
        if('interaction' in (select kind from asked), sha256(concat($user_hash_key, chr(31), interaction_id)), null) as interaction
    from known_interactions
)
select * exclude (session, interaction), 'asked' as because
from hashed
where user_hash in (select sha256 from asked where kind = 'user')
    or session_id is not null and session in (select sha256 from asked where kind = 'session')
    or interaction in (select sha256 from asked where kind = 'interaction')
