-- Seeds in order of their id.
-- needs: seeds
-- makes: rows (row_id, place)
select row_id, row_number() over (order by row_id) as place from seeds order by place
