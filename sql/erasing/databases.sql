-- name: columns
-- SQLite: the columns of all tables that may hold text.
select tables.name as table_name, columns.name as column_name
from sqlite_master as tables, pragma_table_info(tables.name) as columns
where tables.type = 'table' and tables.name not like 'sqlite_%'
order by tables.name, columns.cid

-- name: clean
-- SQLite: cleans the values of a column that show erased rows. Table and column are names of the database, in quotes.
-- placeholders: column, table
update {table}
set {column} = cleaned({column})
where is_sought({column})
