-- Days with rows of moved objects. The table is a name in our code, never input.
-- needs: <table>, moved
-- placeholders: table
-- makes: rows (dt)
select distinct dt
from {table}
semi join moved on {table}.source_uri = moved.old_uri
order by dt
