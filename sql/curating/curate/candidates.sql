-- The rows that reach curation, best first: `place` 1 is the copy one would keep before all others. People's word counts
-- first, then the fuller row, then the newer; the id decides the rest, so that the order never depends on how rows arrived.
create or replace temp table entrants as
with heard as (
    select
        rows.*,
        coalesce(verdicts.value, rows.feedback) as opinion, scores.quality as judged_quality, scores.difficulty
    from cleaned_interactions as rows
    left join verdicts using (interaction_id)
    left join scores using (interaction_id)
    where rows.status = 'ok'
)
select
    row_number() over (
        order by
            coalesce(opinion, 0) desc, prompt_characters + completion_characters desc, ts desc nulls last, interaction_id
    ) as place,
    interaction_id, dt, session_id, ts, normalised_sha256, opinion, judged_quality, difficulty,
    $drop_thumbs_down and coalesce(opinion, 0) < 0 as thumbs_down,
    coalesce(judged_quality < $min_quality, false) as low_quality
from heard
