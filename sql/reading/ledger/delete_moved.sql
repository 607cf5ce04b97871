-- Deletes the entries of moved objects, under the old and the new uri.
-- needs: ledger, moved
-- makes: deletion from ledger
delete from ledger
where uri in (select old_uri from moved) or uri in (select uri from moved)
