-- Adds the entries of moved objects under their new uri.
-- needs: ledger, relocated
-- makes: rows into ledger (*)
insert into ledger by name
select * from relocated
