-- Adds entries to the ledger.
-- needs: arriving, ledger
-- makes: rows into ledger (*)
insert into ledger by name
select * from arriving
