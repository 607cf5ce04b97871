-- Lines that are not JSON objects.
-- needs: lines
-- makes: temp table lines_without_record (object, row, raw, is_json)
create or replace temp table lines_without_record as
select object, row, raw, json_valid(raw) as is_json
from lines
where not (regexp_matches(raw, '^\s*\{') and json_valid(raw))
