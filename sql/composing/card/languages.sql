-- Rows of all splits by language of the answer.
-- needs: card_rows
-- makes: rows (language, rows)
select coalesce(language, '') as language, count(*)::bigint as rows
from card_rows
group by all
order by rows desc, language
