-- Adds a page of a listing to `listed_objects`.
-- needs: listed, listed_objects
-- makes: rows into listed_objects (source, uri)
insert into listed_objects
select source, uri
from listed
