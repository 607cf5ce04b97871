-- Deletes what was made of lines that will be read again. Our own code names the table.
-- needs: <table>, rerouted
-- placeholders: table
-- makes: deletion from <table>
delete from {table}
where (object, row) in (select (object, row) from rerouted)
