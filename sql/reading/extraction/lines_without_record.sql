-- Of the lines of a part, those that are no JSON objects: they are no `records`, and no format made a row of them.
create or replace temp table rowless as
select object, row, raw, json_valid(raw) as is_json
from lines
where not (regexp_matches(raw, '^\s*\{') and json_valid(raw))
