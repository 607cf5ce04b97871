-- Rows of some days, those of moved objects under the uri of now; the table name is ours.
-- $days
select {table}.* replace (coalesce(moved.uri, source_uri) as source_uri)
from {table}
left join moved on {table}.source_uri = moved.old_uri
where list_contains($days, dt)
