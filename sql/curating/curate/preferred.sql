-- Pairs each rejected answer with the best other answer to the same prompt: one with positive feedback, else one that no rule
-- drops. Rows with evaluation items make no pairs.
-- needs: candidates, contaminated, prompts
-- parameters: $prefer
-- makes: temp table preferred (rejected_id, chosen_id, prompt)
create or replace temp table preferred as
with answered as (
    select candidates.*, prompts.prompt, prompts.answer
    from candidates
    join prompts using (interaction_id)
    where interaction_id not in (select interaction_id from contaminated)
)
select
    bad.interaction_id as rejected_id,
    arg_min(good.interaction_id, good.place) as chosen_id,
    any_value(bad.prompt) as prompt
from answered as bad
join answered as good on good.prompt = bad.prompt and good.answer <> bad.answer
where $prefer and coalesce(bad.feedback_value, 0) < 0 and coalesce(good.feedback_value, 0) >= 0 and not good.low_quality
group by bad.interaction_id
