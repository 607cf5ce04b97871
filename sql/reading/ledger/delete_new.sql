-- Deletes a source's new objects, before it is listed again.
-- needs: new_objects
-- parameters: $sources
-- makes: deletion from new_objects
delete from new_objects
where list_contains($sources, source)
