-- All rows with their split: conversations as their user or session, seeds for training.
-- needs: curated, seeds, split_groups, training_conversations
-- makes: temp table assigned_splits (row_id, origin, source, session_id, workload, ts, prompt_shape, content_sha256,
--     interaction_ids, split, quality, difficulty, language, synthetic)
create or replace temp table assigned_splits as
select
    rows.interaction_id as row_id, 'interaction' as origin, rows.source, rows.session_id, rows.workload, rows.ts,
    rows.prompt_shape, rows.content_sha256, rows.interaction_ids, split_groups.split, rows.quality, rows.difficulty,
    rows.language, false as synthetic
from training_conversations as rows
join split_groups using (session_id)
union all
select
    row_id, 'seed', source, coalesce(session_id, row_id), (select any_value(workload) from curated), null,
    'seed#' || source, content_sha256, interaction_ids, 'train', null, null, null, synthetic
from seeds
