-- Lines that are not JSON and contain the escape of a surrogate: a lone surrogate may be all that is wrong.
-- needs: lines_without_record
-- makes: rows (object, row, raw)
select object, row, raw
from lines_without_record
where not is_json and regexp_matches(raw, '\\u[dD][89a-fA-F]')
