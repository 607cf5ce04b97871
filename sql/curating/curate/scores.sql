-- The judge's scores of every row, by text: copies share the scores of the row that was judged.
-- needs: cleaned_rows, judgements
-- parameters: $model, $prompt_sha256
-- makes: temp table scores (interaction_id, quality, difficulty)
create or replace temp table scores as
with text_scores as (
    select
        cleaned_rows.normalised_sha256,
        arg_max(score, judgements.ts) filter (name = 'quality') as quality,
        arg_max(score, judgements.ts) filter (name = 'difficulty') as difficulty
    from judgements
    join cleaned_rows using (interaction_id, content_sha256)
    where model = $model and prompt_sha256 = $prompt_sha256 and score is not null
    group by cleaned_rows.normalised_sha256
)
select interaction_id, text_scores.quality, text_scores.difficulty
from cleaned_rows
join text_scores using (normalised_sha256)
