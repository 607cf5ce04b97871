-- Objects that vanished before they were read. Rows of what was read stay, and so does its entry.
delete from ledger
where state <> 'read'
    and list_contains($sources, source)
    and not exists (select 1 from seen where seen.source = ledger.source and seen.uri = ledger.uri)
returning uri
