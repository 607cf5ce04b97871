-- Prompts of one split without evaluation items, in shuffled order; of training prompts the first $max_rows.
-- needs: contaminated, prompt_rows
-- parameters: $max_rows, $seed, $split
-- makes: rows (*)
select *
from prompt_rows
where split = $split and row_id not in (select interaction_id from contaminated)
qualify $split <> 'train' or row_number() over (order by md5($seed || ':row:' || row_id), row_id) <= $max_rows
order by md5($seed || ':row:' || row_id), row_id
