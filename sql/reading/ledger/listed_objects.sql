-- Objects that the sources list now.
-- makes: temp table listed_objects (source, uri)
create or replace temp table listed_objects (source varchar, uri varchar)
