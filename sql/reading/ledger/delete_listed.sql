-- Deletes a source's listing, before it is listed again.
-- needs: listed_objects
-- parameters: $sources
-- makes: deletion from listed_objects
delete from listed_objects
where list_contains($sources, source)
