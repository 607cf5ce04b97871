-- Lines that identify a slice of judgements: each score, by row, name, model and prompt.
-- needs: judgements
-- makes: rows (dt, line)
select
    dt,
    interaction_id || ' ' || coalesce(content_sha256, '') || ' ' || name || ' ' || model || ' ' || prompt_sha256 || ' '
    || coalesce(score::varchar, '') as line
from judgements
order by dt, line
