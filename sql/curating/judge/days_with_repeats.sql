-- Days where a row has more than one judgement with the same name, model and prompt.
-- needs: judgements
-- makes: rows (dt)
select distinct dt
from judgements
group by dt, interaction_id, content_sha256, name, model, prompt_sha256
having count(*) > 1
order by dt
