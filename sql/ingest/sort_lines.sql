-- Of the lines of a part, those that are JSON objects. (Valid JSON that opens with a brace is one: no second parse.)
insert into records
select object, row, raw
from lines
where regexp_matches(raw, '^\s*\{') and json_valid(raw)
