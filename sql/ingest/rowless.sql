-- Of the lines of a part that gave no row, those that are no JSON objects.
create or replace temp table rowless as
with present as (
    select object, row from staged semi join lines using (object, row)
    union all
    select object, row from checked_feedback semi join lines using (object, row)
)

select object, row, raw, json_valid(raw) as is_json
from lines
anti join present using (object, row)
where not (regexp_matches(raw, '^\s*\{') and json_valid(raw))
