-- Seeds that contain evaluation items, and which items.
-- needs: contaminated, seeds
-- makes: rows (row_id, source, source_uri, source_row, suite, item_id, part, share)
select row_id, source, source_uri, source_row, suite, item_id, part, share
from seeds
join contaminated on contaminated.interaction_id = seeds.row_id
order by source, source_uri, source_row, suite, item_id, part
