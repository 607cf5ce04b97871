-- Log objects with a file name, in any folder.
-- needs: objects
-- parameters: $name
-- makes: rows (uri)
select distinct uri
from objects
where parse_filename(nfc_normalize(uri)) = $name
order by uri
limit 4
