-- Columns of the catalog's tables and views, with their comments.
-- makes: view relation_columns (relation, column_name, data_type, comment)
create view relation_columns as
select table_name as relation, column_name, data_type, comment
from duckdb_columns()
where not internal and database_name not in ('system', 'temp')
order by relation, column_index
