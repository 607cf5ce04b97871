-- A source is listed anew.
delete from fresh
where list_contains($sources, source)
