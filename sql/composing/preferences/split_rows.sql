-- Rows of one split in shuffled order; of training rows the first $max_rows.
-- needs: preference_rows, teacher_rows
-- parameters: $max_rows, $seed, $split
-- makes: rows (*)
with together as (
    select * from preference_rows
    union all by name
    select * from teacher_rows
)
select *
from together
where split = $split
qualify $split <> 'train' or row_number() over (order by md5($seed || ':row:' || row_id), row_id) <= $max_rows
order by md5($seed || ':row:' || row_id), row_id
