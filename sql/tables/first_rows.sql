-- The first rows of a table. Table and number are ours, never input.
-- needs: <table>
-- placeholders: count, table
-- makes: rows (*)
from (select * from {table} limit {count})
