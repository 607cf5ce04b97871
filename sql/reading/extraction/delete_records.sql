-- Takes out of a table what came of records of another format; the table name is ours.
delete from {table}
where (object, row) in (select (object, row) from other_records)
