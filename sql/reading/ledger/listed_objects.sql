-- What the listings of now hold.
create or replace temp table seen (source varchar, uri varchar)
