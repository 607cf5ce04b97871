-- Preference rows of a teacher: a kept and a rejected answer. They are made from training rows only.
-- needs: preference_rows, teacher_pairs
-- makes: temp table teacher_rows (row_id, origin, source, session_id, workload, ts, prompt, tools, chosen, rejected,
--     chosen_id, rejected_id, interaction_ids, content_sha256, chosen_feedback, rejected_feedback, split, weight, reason,
--     synthetic, language)
create or replace temp table teacher_rows as
select
    'pair:' || left(md5(chosen || ' ' || rejected || row_id), 24) as row_id, 'teacher' as origin, source, session_id,
    (select any_value(workload) from preference_rows) as workload, null::timestamptz as ts, prompt, tools, chosen, rejected,
    null::varchar as chosen_id, null::varchar as rejected_id, interaction_ids,
    sha256(prompt || chr(1) || chosen || chr(1) || rejected) as content_sha256, chosen_score as chosen_feedback,
    rejected_score as rejected_feedback, 'train' as split, 1.0::double as weight, 'teacher' as reason, true as synthetic,
    null::varchar as language
from teacher_pairs
