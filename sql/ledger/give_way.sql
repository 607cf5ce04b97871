-- Entries that are about to be written anew.
delete from ledger
using arriving
where ledger.source = arriving.source and ledger.uri = arriving.uri
