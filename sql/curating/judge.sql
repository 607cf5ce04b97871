-- name: texts_to_judge
-- Distinct texts to judge, each with one row that has it, and whether both scores exist. Sampled by the hash of the text, so
-- the same texts are chosen every day. Plain-text and token rows have no request to judge an answer by. $max_rows: null for all
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

-- name: counts
-- Number of texts to judge, and how many have scores.
select count(*) as texts, count(*) filter (is_known) as known from texts_to_judge

-- name: not_scored
-- Rows to send to the judge.
select interaction_id from texts_to_judge where not is_known order by draw

-- name: texts
-- The messages and answers to show to the judge.
select workload, dt, interaction_id, content_sha256, messages, completion
from cleaned_interactions
where list_contains($ids, interaction_id)
order by interaction_id

-- name: days_with_repeats
-- Days where a row has more than one judgement with the same name, model and prompt.
select distinct dt
from judgements
group by dt, interaction_id, content_sha256, name, model, prompt_sha256
having count(*) > 1
order by dt

-- name: without_repeats
-- One judgement per row, name, model and prompt: a scored one, else the newest.
select *
from judgements
where dt = $dt
qualify row_number() over (
    partition by interaction_id, content_sha256, name, model, prompt_sha256 order by score is null, ts desc
) = 1
order by interaction_id, name, model, prompt_sha256
