-- One judgement per row, name, model and prompt: a scored one, else the newest.
-- needs: judgements
-- parameters: $dt
-- makes: rows (*)
select *
from judgements
where dt = $dt
qualify row_number() over (
    partition by interaction_id, content_sha256, name, model, prompt_sha256 order by score is null, ts desc
) = 1
order by interaction_id, name, model, prompt_sha256
