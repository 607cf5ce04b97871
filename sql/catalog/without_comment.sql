-- Catalog objects without a comment: tables, views and macros (column_name null), and columns.
-- makes: rows (kind, relation, column_name)
select 'view' as kind, view_name as relation, null as column_name
from duckdb_views()
where not internal and comment is null
union all
select 'table', table_name, null
from duckdb_tables()
where not internal and comment is null
union all
select 'macro table', function_name, null
from duckdb_functions()
where function_type = 'table_macro' and not internal and comment is null
union all
select 'column', table_name, column_name
from duckdb_columns()
where not internal and comment is null
