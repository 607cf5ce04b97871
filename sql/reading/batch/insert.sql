-- Inserts Arrow rows into a batch table. The table is a name in our code, never input.
-- needs: <table>, arriving
-- placeholders: table
-- makes: rows into <table> (*)
insert into {table} by name select * from arriving
