-- Parts of evaluation items to search for: prompts and answers. Items with the same prompt have the same owner.
-- needs: eval_items
-- makes: rows (suite, item_id, part, text, owner)
select suite, item_id, 'prompt' as part, prompt as text, prompt as owner
from eval_items
where prompt is not null
union all
select suite, item_id, 'answer', answer, coalesce(prompt, item_id)
from eval_items
where answer is not null
