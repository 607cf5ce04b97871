-- Log objects of a name, wherever they lie.
-- $name
select distinct uri
from objects
where parse_filename(nfc_normalize(uri)) = $name
order by uri
limit 4
