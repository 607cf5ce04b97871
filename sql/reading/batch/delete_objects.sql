-- Deletes the rows of some objects from a batch table. The table is a name in our code, never input.
-- needs: <table>
-- parameters: $objects
-- placeholders: table
-- makes: deletion from <table>
delete from {table}
where list_contains($objects, object)
