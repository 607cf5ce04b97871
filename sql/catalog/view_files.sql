-- Parquet files that the catalog's views read: the only files that a query may open.
-- needs: listed_files
-- makes: table view_files (relation, path)
create table view_files as
select relation, path from listed_files order by relation, path
