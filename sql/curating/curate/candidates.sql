-- Rows that reach curation, ranked: of copies, the row with the lowest `place` is kept. Order: feedback, then length, recency,
-- id; so the order never depends on how rows arrived.
-- needs: cleaned_rows, row_feedback, scores
-- parameters: $drop_thumbs_down, $min_quality
-- makes: temp table candidates (place, interaction_id, dt, session_id, ts, normalised_sha256, feedback_value,
--     judged_quality, difficulty, thumbs_down, low_quality)
create or replace temp table candidates as
with with_feedback as (
    select
        rows.*,
        coalesce(row_feedback.value, rows.feedback) as feedback_value, scores.quality as judged_quality, scores.difficulty
    from cleaned_rows as rows
    left join row_feedback using (interaction_id)
    left join scores using (interaction_id)
    where rows.status = 'ok'
)
select
    row_number() over (
        order by
            coalesce(feedback_value, 0) desc, prompt_characters + completion_characters desc, ts desc nulls last, interaction_id
    ) as place,
    interaction_id, dt, session_id, ts, normalised_sha256, feedback_value, judged_quality, difficulty,
    $drop_thumbs_down and coalesce(feedback_value, 0) < 0 as thumbs_down,
    coalesce(judged_quality < $min_quality, false) as low_quality
from with_feedback
