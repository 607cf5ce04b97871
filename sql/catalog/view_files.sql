-- The Parquet files that the catalog's views read: all that a question may open.
create table view_files as
select relation, path from listed_files order by relation, path
