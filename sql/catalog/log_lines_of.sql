-- Log lines behind an artefact, in an order that pages can rely on. $artefact: name@version
-- needs: log_lines_in()
-- parameters: $artefact
-- makes: rows (*)
select *
from log_lines_in($artefact)
order by dataset, split, row_id, interaction_id
