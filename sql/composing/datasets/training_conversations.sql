-- Conversations to train on: rows that no other row contains, without their texts (sampled_texts.sql). interaction_ids: every
-- interaction whose answer the row trains on. Where several rows end in the same message (exact copies that curation let
-- through), the first is listed in its place and the others come after the row's own id.
-- needs: contained_rows, curated
-- makes: temp table training_conversations (interaction_id, source, session_id, user_hash, workload, ts, prompt_shape,
--     content_sha256, language, quality, difficulty, interaction_ids)
create or replace temp table training_conversations as
with carried_rows as (
    select container_id, position, list(interaction_id order by interaction_id) as carried_ids
    from contained_rows
    group by container_id, position
),
gathered as (
    select
        container_id as interaction_id,
        list(carried_ids[1] order by position) as carried,
        flatten(list(carried_ids[2:] order by position)) as copies
    from carried_rows
    group by container_id
)
select
    interaction_id, source, session_id, user_hash, workload, ts, prompt_shape, content_sha256, language, quality, difficulty,
    list_concat(list_append(coalesce(carried, []), interaction_id), coalesce(copies, [])) as interaction_ids
from curated
left join gathered using (interaction_id)
where interaction_id not in (select interaction_id from contained_rows)
