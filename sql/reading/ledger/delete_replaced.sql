-- Deletes entries that are about to be replaced. An object has one entry, whatever its source is called: sources share no
-- objects.
-- needs: arriving, ledger
-- makes: deletion from ledger
delete from ledger
using arriving
where ledger.uri = arriving.uri
