-- Days where changed feedback changes whether the rules on style apply to a row.
-- needs: cleaned_interactions, row_feedback
-- makes: rows (dt)
with style_rows as (
    select dt, interaction_id, feedback
    from cleaned_interactions
    where status in (
        'language', 'repeated_pattern', 'repetitive', 'prompt_too_short', 'prompt_too_long', 'answer_too_short', 'answer_too_long',
        'ratio_too_low', 'ratio_too_high', 'refused_in_words'
    ) or (status = 'ok' and feedback > 0)
)
select distinct dt
from style_rows
left join row_feedback using (interaction_id)
where (coalesce(row_feedback.value, 0) > 0) <> (coalesce(style_rows.feedback, 0) > 0)
order by dt
