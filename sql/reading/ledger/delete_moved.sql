delete from ledger
where uri in (select old_uri from moved) or uri in (select uri from moved)
