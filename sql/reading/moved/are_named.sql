-- Whether a table without days names a moved object. Table and column are names in our code, never input.
-- needs: <table>, moved
-- placeholders: column, table
-- makes: rows (compare_greaterthan)
select count(*) > 0
from {table}
semi join moved on {column} = moved.old_uri
