-- Listed objects that the ledger did not know under any source.
create or replace temp table fresh (source varchar, uri varchar)
