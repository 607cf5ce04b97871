-- SQLite: cleans the values of a column that show erased rows. Table and column are names of the database, in quotes.
-- needs: <table>, cleaned(), is_sought()
-- placeholders: column, table
-- makes: update of <table> (<column>)
update {table}
set {column} = cleaned({column})
where is_sought({column})
