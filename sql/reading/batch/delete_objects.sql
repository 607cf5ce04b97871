-- Takes the rows of some objects out of one of the batch tables; the table name is ours.
delete from {table}
where list_contains($objects, object)
