-- All of the quarantine, lines of moved objects under the uri of now.
select quarantine.* replace (coalesce(moved.uri, source_uri) as source_uri)
from quarantine
left join moved on quarantine.source_uri = moved.old_uri
