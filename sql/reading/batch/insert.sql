-- Arrow rows into one of the batch tables; the table name is ours.
insert into {table} by name select * from arriving
