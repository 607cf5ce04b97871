-- Number of training rows, each counted once.
-- needs: training_rows
-- makes: rows (rows)
select count(distinct row_id) as rows from training_rows
