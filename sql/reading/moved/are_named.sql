-- Whether a table without days names a moved object; the table and the column are ours.
select count(*) > 0
from {table}
semi join moved on {column} = moved.old_uri
