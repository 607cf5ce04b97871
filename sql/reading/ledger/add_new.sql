-- Adds listed objects that the ledger does not have to `new_objects`.
-- needs: ledger, listed, new_objects
-- makes: rows into new_objects (source, uri)
insert into new_objects
select source, uri
from listed
anti join ledger using (uri)
