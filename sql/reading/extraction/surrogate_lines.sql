-- Lines that are no JSON, and have the escape of half a character in them: the half may be all that is wrong.
select object, row, raw
from rowless
where not is_json and regexp_matches(raw, '\\u[dD][89a-fA-F]')
