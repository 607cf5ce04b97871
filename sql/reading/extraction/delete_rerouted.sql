-- Deletes the rows of lines that will be read again. The table is a name in our code, never input.
-- needs: <table>, rerouted
-- placeholders: table
-- makes: deletion from <table>
delete from {table}
where (object, row) in (select (object, row) from rerouted)
