-- name: count_rows
-- Number of training rows, each counted once.
select count(distinct row_id) as rows from training_rows

-- name: split_rows
-- Training rows to calibrate with, drawn by hash, round by round from each prompt shape, so that rare kinds of requests are among
-- them. Held-out rows are never read.
with once as (
    select * from training_rows qualify row_number() over (partition by row_id) = 1
),
drawn as (
    select *, md5($seed || ':calibration:' || row_id) as draw from once
),
turns as (
    select *, row_number() over (partition by prompt_shape order by draw, row_id) as turn from drawn
)
select * exclude (draw, turn)
from turns
order by turn, draw, row_id
limit $rows
