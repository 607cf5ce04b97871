-- Rows of some days with moved objects under their new uri. Our own code names the table.
-- needs: <table>, moved
-- parameters: $days
-- placeholders: table
-- makes: rows (<table>.*)
select {table}.* replace (coalesce(moved.uri, source_uri) as source_uri)
from {table}
left join moved on {table}.source_uri = moved.old_uri
where list_contains($days, dt)
