-- Counts the interactions, log objects and hashed users behind an artefact. $artefact: name@version
-- needs: log_lines_in()
-- parameters: $artefact
-- makes: rows (interactions, objects, users)
select
    count(distinct interaction_id) as interactions, count(distinct source_uri) as objects, count(distinct user_hash) as users
from log_lines_in($artefact)
where interaction_id is not null
