-- Listed objects that no source had before.
-- makes: temp table new_objects (source, uri)
create or replace temp table new_objects (source varchar, uri varchar)
