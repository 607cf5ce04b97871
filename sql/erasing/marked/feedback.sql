-- The table feedback, with what an erasure does to each row: erased where it is about an erased interaction, by the ids in the
-- record or by the interaction that it was tied to, or of a source that is erased as a whole. Tombstones of earlier erasures and
-- of ingests count too: by them feedback is found whose request was dropped.
-- needs: asked, asked_objects, erased_ids, erasures, feedback, selected
-- parameters: $user_hash_key
-- makes: temp table marked_feedback (*, change)
create or replace temp table marked_feedback as
with tombstones as (
    select sha256 from erasures where kind in ('about', 'interaction', 'session')
)
select
    *,
    case
        when interaction_id in (select interaction_id from selected) then 'erased'
        when interaction_id in (select id from erased_ids) or given_id in (select id from erased_ids)
            or request_id in (select id from erased_ids) or trace_id in (select id from erased_ids)
            or session_id in (select id from erased_ids)
            then 'erased'
        when 'session' in (select kind from asked)
            and sha256(concat($user_hash_key, chr(31), session_id)) in (select sha256 from asked where kind = 'session')
            then 'erased'
        when interaction_id is not null and sha256(concat($user_hash_key, chr(31), interaction_id)) in (select sha256 from tombstones)
            or given_id is not null and sha256(concat($user_hash_key, chr(31), given_id)) in (select sha256 from tombstones)
            or request_id is not null and sha256(concat($user_hash_key, chr(31), request_id)) in (select sha256 from tombstones)
            or trace_id is not null and sha256(concat($user_hash_key, chr(31), trace_id)) in (select sha256 from tombstones)
            or session_id is not null and sha256(concat($user_hash_key, chr(31), session_id)) in (select sha256 from tombstones)
            then 'erased'
        when (workload, source_uri) in (select (workload, uri) from asked_objects) then 'erased'
    end as change
from feedback
