-- Days with rows of moved objects; the table name is ours.
select distinct dt
from {table}
semi join moved on {table}.source_uri = moved.old_uri
order by dt
