-- Rows of traffic for training that a named dataset does not ask for, each by the first bound that it misses. A row without a
-- score misses a bound on it. Held-out rows and seeds stay.
-- needs: assigned_splits, curated
-- parameters: $first_day, $languages, $last_day, $min_difficulty, $min_feedback, $min_quality
-- makes: temp table unwanted_rows (row_id, rule)
create or replace temp table unwanted_rows as
with missed as (
    select
        assigned_splits.row_id,
        case
            when not coalesce(curated.dt >= $first_day::date, $first_day is null) then 'before_first_day'
            when not coalesce(curated.dt <= $last_day::date, $last_day is null) then 'after_last_day'
            when $languages is not null and not coalesce(list_contains($languages::varchar[], curated.language), false)
                then 'language_not_asked_for'
            when not coalesce(curated.quality >= $min_quality::double, $min_quality is null) then 'below_min_quality'
            when not coalesce(curated.difficulty >= $min_difficulty::double, $min_difficulty is null) then 'below_min_difficulty'
            when not coalesce(curated.feedback >= $min_feedback::double, $min_feedback is null) then 'below_min_feedback'
        end as rule
    from assigned_splits
    join curated on curated.interaction_id = assigned_splits.row_id
    where assigned_splits.origin = 'interaction' and assigned_splits.split = 'train'
)
select row_id, rule
from missed
where rule is not null
