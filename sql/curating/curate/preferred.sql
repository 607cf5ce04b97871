-- Each answer that people turned down, beside the best other answer to the same prompt: one they liked, else one that no rule
-- holds anything against. Rows that hold evaluation items make no pairs.
create or replace temp table preferred as
with asked as (
    select entrants.*, prompts.prompt, prompts.answer
    from entrants
    join prompts using (interaction_id)
    where interaction_id not in (select interaction_id from contaminated)
)
select
    bad.interaction_id as rejected_id,
    arg_min(good.interaction_id, good.place) as chosen_id,
    any_value(bad.prompt) as prompt
from asked as bad
join asked as good on good.prompt = bad.prompt and good.answer <> bad.answer
where $prefer and coalesce(bad.opinion, 0) < 0 and coalesce(good.opinion, 0) >= 0 and not good.low_quality
group by bad.interaction_id
