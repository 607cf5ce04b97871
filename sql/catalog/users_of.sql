-- Hashed users behind an artefact. $artefact: name@version
-- needs: users_in()
-- parameters: $artefact
-- makes: rows (*)
select * from users_in($artefact)
