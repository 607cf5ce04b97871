-- name: interactions
-- Lines without JSON between records with a prefix: counted.
select object, row, 0 as part, 'log_lines' as format, 'skipped' as error_code, 'log_line' as message
from records
