-- What an evaluation item consists of: its prompt, and its answer where that is long enough to be telling ("42" is not).
select suite, item_id, 'prompt' as part, prompt as text
from eval_items
where prompt is not null
union all
select suite, item_id, 'answer', answer
from eval_items
where answer is not null
