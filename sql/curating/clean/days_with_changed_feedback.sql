-- Days with rows that people came to like, or no longer do, where that decides whether a rule of taste holds for them.
with taste as (
    select dt, interaction_id, feedback
    from cleaned_interactions
    where status in (
        'language', 'repeated_pattern', 'repetitive', 'prompt_too_short', 'prompt_too_long', 'answer_too_short', 'answer_too_long',
        'ratio_too_low', 'ratio_too_high', 'refused_in_words'
    ) or (status = 'ok' and feedback > 0)
)
select distinct dt
from taste
left join verdicts using (interaction_id)
where (coalesce(verdicts.value, 0) > 0) <> (coalesce(taste.feedback, 0) > 0)
order by dt
