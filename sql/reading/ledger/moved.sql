-- Moved objects: old uri and new uri.
-- makes: temp table moved (old_uri, uri)
create or replace temp table moved (old_uri varchar, uri varchar)
