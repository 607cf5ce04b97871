-- Prompt shapes of healthy rows, most frequent first.
-- needs: cleaned_interactions
-- makes: rows (shape, rows)
select prompt_shape as shape, count(*) as rows
from cleaned_interactions
where status = 'ok'
group by prompt_shape
order by rows desc, shape
