-- Counts the interactions and log objects behind an artefact. $artefact: name@version
-- needs: log_lines_in()
-- parameters: $artefact
-- makes: rows (interactions, objects)
select count(distinct interaction_id) as interactions, count(distinct source_uri) as objects
from log_lines_in($artefact)
where interaction_id is not null
