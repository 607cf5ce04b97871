-- Deletes objects that vanished before they were read. Objects that were read keep their rows and their entry.
-- needs: ledger, listed_objects
-- parameters: $sources
-- makes: deletion from ledger, rows (uri)
delete from ledger
where state <> 'read'
    and list_contains($sources, source)
    and not exists (select 1 from listed_objects where listed_objects.source = ledger.source and listed_objects.uri = ledger.uri)
returning uri
