-- Days with rows of moved objects. Our own code names the table.
-- needs: <table>, moved
-- placeholders: table
-- makes: rows (dt)
select distinct dt
from {table}
semi join moved on {table}.source_uri = moved.old_uri
order by dt
