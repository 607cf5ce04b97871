insert into ledger by name
select * from arriving
