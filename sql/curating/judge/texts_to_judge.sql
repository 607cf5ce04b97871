-- Distinct texts to judge, each with one row that has it, and whether both scores exist. Sampled by the hash of the text, so
-- the same texts are chosen every day. Plain-text and token rows have no request to judge an answer by. $max_rows: null for all
-- needs: cleaned_interactions, judgements
-- parameters: $max_rows, $model, $prompt_sha256
-- makes: temp table texts_to_judge (*, draw)
create or replace temp table texts_to_judge as
with scored as (
    select interaction_id, content_sha256
    from judgements
    where model = $model and prompt_sha256 = $prompt_sha256 and score is not null
    group by interaction_id, content_sha256
    having count(distinct name) = 2
),
texts as (
    select
        normalised_sha256, min(cleaned_interactions.interaction_id) as interaction_id,
        bool_or(scored.interaction_id is not null) as is_known
    from cleaned_interactions
    left join scored using (interaction_id, content_sha256)
    where status = 'ok' and completion is not null and messages <> '[]'
    group by normalised_sha256
)
select *, md5(normalised_sha256) as draw
from texts
qualify $max_rows::bigint is null or row_number() over (order by draw) <= $max_rows
