-- Preference rows with their split: the most protected one of both answers' sessions.
-- needs: answered, pairs, split_groups
-- makes: temp table preference_rows (row_id, origin, source, session_id, workload, ts, prompt, tools, chosen, rejected,
--     chosen_id, rejected_id, interaction_ids, content_sha256, chosen_feedback, rejected_feedback, split, weight, reason,
--     synthetic, language)
create or replace temp table preference_rows as
with rated as (
    select
        pairs.*, rejected.session_id, rejected.source, rejected.workload, rejected.ts, rejected.messages as prompt, rejected.tools,
        rejected.language, rejected.value as rejected_feedback, chosen.value as chosen_feedback,
        coalesce(pairs.edited, cast(chosen.completion as json)) as better, cast(rejected.completion as json) as worse,
        least(
            case of_rejected.split when 'test' then 0 when 'validation' then 1 else 2 end,
            case of_chosen.split when 'test' then 0 when 'validation' then 1 else 2 end
        ) as place
    from pairs
    join answered as rejected on rejected.interaction_id = pairs.rejected_id
    left join answered as chosen on chosen.interaction_id = pairs.chosen_id
    join split_groups as of_rejected on of_rejected.session_id = rejected.session_id
    left join split_groups as of_chosen on of_chosen.session_id = chosen.session_id
),
written as (
    select
        *,
        json_array(json_merge_patch(better, json_object('role', 'assistant')))::varchar as chosen,
        json_array(json_merge_patch(worse, json_object('role', 'assistant')))::varchar as rejected
    from rated
)
select
    'pair:' || left(md5(coalesce(chosen_id, chosen) || ' ' || rejected_id), 24) as row_id, 'interaction' as origin, source,
    session_id, workload, ts, prompt, tools, chosen, rejected, chosen_id, rejected_id,
    list_filter([chosen_id, rejected_id], lambda name: name is not null) as interaction_ids,
    sha256(prompt || chr(1) || chosen || chr(1) || rejected) as content_sha256,
    chosen_feedback, rejected_feedback, ['test', 'validation', 'train'][place + 1] as split, 1.0::double as weight, reason,
    false as synthetic, language
from written
