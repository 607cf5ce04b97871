-- Listed objects of some formats.
-- needs: ledger, listed_objects
-- parameters: $formats, $sources
-- makes: rows (*)
select *
from ledger
semi join listed_objects using (source, uri)
where list_contains($formats, format) and list_contains($sources, source)
order by source, uri
