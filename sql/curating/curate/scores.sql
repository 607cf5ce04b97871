-- The judge's scores of every row, by its text: copies have the scores of the one that was shown.
-- $model, $prompt_sha256
create or replace temp table scores as
with told as (
    select
        cleaned_interactions.normalised_sha256,
        arg_max(score, judgements.ts) filter (name = 'quality') as quality,
        arg_max(score, judgements.ts) filter (name = 'difficulty') as difficulty
    from judgements
    join cleaned_interactions using (interaction_id, content_sha256)
    where model = $model and prompt_sha256 = $prompt_sha256 and score is not null
    group by cleaned_interactions.normalised_sha256
)
select interaction_id, told.quality, told.difficulty
from cleaned_interactions
join told using (normalised_sha256)
