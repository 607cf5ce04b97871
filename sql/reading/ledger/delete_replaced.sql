-- Entries that are about to be written anew. An object has one entry, whatever its source is called now: sources do not
-- share objects.
delete from ledger
using arriving
where ledger.uri = arriving.uri
