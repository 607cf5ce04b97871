-- Deletes the rows of some objects from a batch table. Our own code names the table.
-- needs: <table>
-- parameters: $objects
-- placeholders: table
-- makes: deletion from <table>
delete from {table}
where list_contains($objects, object)
