-- Of the lines of a part, those that are JSON objects: the records that one format turns into rows.
-- (Valid JSON that opens with a brace is one: no second parse.)
create or replace temp view records as
select object, row, raw
from lines
where regexp_matches(raw, '^\s*\{') and json_valid(raw)
