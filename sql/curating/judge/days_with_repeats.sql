-- Days on which a row has more than one judgement of a name by one model and prompt.
select distinct dt
from judgements
group by dt, interaction_id, content_sha256, name, model, prompt_sha256
having count(*) > 1
order by dt
