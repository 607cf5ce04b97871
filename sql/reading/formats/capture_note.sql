-- name: interactions
-- Notes of the capture layer about exchanges that it could not keep: skipped, and counted by reason.
select
    object,
    row,
    0 as part,
    'capture_note' as format,
    'skipped' as error_code,
    concat('capture_', coalesce(
        regexp_extract(json_keys(raw, '$.capture_note.not_kept')[1], '^[a-z_]{1,40}$'), 'note'
    )) as message
from records
