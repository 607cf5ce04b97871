-- Tables, views and macros of the catalog, with their comments.
-- makes: view relations (relation, kind, comment)
create view relations as
select view_name as relation, 'view' as kind, comment
from duckdb_views()
where not internal and database_name not in ('system', 'temp')
union all
select table_name, 'table', comment
from duckdb_tables()
where not internal and database_name not in ('system', 'temp')
union all
select printf('%s(%s)', function_name, array_to_string(parameters, ', ')), 'macro', comment
from duckdb_functions()
where function_type = 'table_macro' and not internal and database_name not in ('system', 'temp')
order by relation
