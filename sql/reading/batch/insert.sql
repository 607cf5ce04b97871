-- Inserts Arrow rows into a batch table. Our own code names the table.
-- needs: <table>, arriving
-- placeholders: table
-- makes: rows into <table> (*)
insert into {table} by name select * from arriving
