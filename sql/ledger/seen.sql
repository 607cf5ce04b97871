-- Unread objects that the listing of now still has.
create or replace temp table seen (source varchar, uri varchar)
