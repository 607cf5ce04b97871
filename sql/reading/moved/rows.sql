-- Rows of some days with moved objects under their new uri. The table is a name in our code, never input.
-- needs: <table>, moved
-- parameters: $days
-- placeholders: table
-- makes: rows (<table>.*)
select {table}.* replace (coalesce(moved.uri, source_uri) as source_uri)
from {table}
left join moved on {table}.source_uri = moved.old_uri
where list_contains($days, dt)
