-- Log lines behind an artefact. $artefact: name@version
-- needs: log_lines_in()
-- parameters: $artefact
-- makes: rows (*)
select * from log_lines_in($artefact)
