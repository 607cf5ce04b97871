-- Lines that are JSON objects: the records that a format's select reads. (Valid JSON that opens with a brace is an object: no
-- second parse.)
-- needs: lines
-- makes: temp view records (object, row, raw)
create or replace temp view records as
select object, row, raw
from lines
where regexp_matches(raw, '^\s*\{') and json_valid(raw)
