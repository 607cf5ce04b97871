-- New objects with the size of an object that is gone.
-- needs: gone, ledger, new_objects
-- parameters: $source
-- makes: temp table arrived (source, uri, bytes, etag, modified)
create or replace temp table arrived as
select source, uri, bytes, etag, modified
from ledger
semi join new_objects using (source, uri)
semi join gone using (bytes)
where source = $source
