-- A source is listed anew.
delete from seen
where list_contains($sources, source)
