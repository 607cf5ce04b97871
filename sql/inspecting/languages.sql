-- Healthy rows by language.
-- needs: cleaned_interactions
-- makes: rows (language, rows)
select language, count(*) as rows
from cleaned_interactions
where language is not null and status = 'ok'
group by language
order by rows desc, language
