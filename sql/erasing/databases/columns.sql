-- SQLite: the columns of all tables that may hold text.
-- needs: sqlite_master
-- makes: rows (table_name, column_name)
select tables.name as table_name, columns.name as column_name
from sqlite_master as tables, pragma_table_info(tables.name) as columns
where tables.type = 'table' and tables.name not like 'sqlite_%'
order by tables.name, columns.cid
