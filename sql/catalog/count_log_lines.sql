-- How many interactions, of how many log objects, are behind an artefact.
-- $artefact: name@version
select count(distinct interaction_id) as interactions, count(distinct source_uri) as objects
from log_lines_in($artefact)
where interaction_id is not null
