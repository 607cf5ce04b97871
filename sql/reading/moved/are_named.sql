-- Whether a table without days names a moved object. Our own code names the table and the column.
-- needs: <table>, moved
-- placeholders: column, table
-- makes: rows (compare_greaterthan)
select count(*) > 0
from {table}
semi join moved on {column} = moved.old_uri
