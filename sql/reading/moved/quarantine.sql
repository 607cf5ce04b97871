-- The quarantine with moved objects under their new uri.
-- needs: moved, quarantine
-- makes: rows (quarantine.*)
select quarantine.* replace (coalesce(moved.uri, source_uri) as source_uri)
from quarantine
left join moved on quarantine.source_uri = moved.old_uri
