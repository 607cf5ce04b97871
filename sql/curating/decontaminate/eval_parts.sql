-- Parts of evaluation items to search for: prompts and answers.
-- needs: eval_items
-- makes: rows (suite, item_id, part, text)
select suite, item_id, 'prompt' as part, prompt as text
from eval_items
where prompt is not null
union all
select suite, item_id, 'answer', answer
from eval_items
where answer is not null
