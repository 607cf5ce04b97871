-- Rows that may hold personal data, in the order in which their sessions' placeholders are numbered.
-- The patterns are wider than resources/pii.py's: a row missed here would never be looked at there. \\u escapes can hide
-- any character in JSON text, so a row that has one in the ASCII range is looked at as well.
with looked_at as (
    select
        interaction_id, session_id, dt, ts, messages, tools, completion,
        concat_ws(' ', messages, tools, completion) as everything
    from conversations
)
select interaction_id, session_id, dt, messages, tools, completion
from looked_at
where regexp_matches(
    everything,
    '@[A-Za-z0-9.\-]*\.[A-Za-z]{2}|([0-9][ .()\-]{0,2}){8}|[A-Z]{2}[0-9]{2} ?[A-Z0-9]{4}'
    || '|sk-|[srp]k_(live|test)_|gh[pousr]_|github_pat_|glpat-|AKIA|ASIA|AIza|xox[abeoprs]-|hf_|npm_|pypi-|SG\.|eyJ'
    || '|PRIVATE KEY|\\u00[2-7]'
)
order by session_id, dt, ts, interaction_id
