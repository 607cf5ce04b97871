-- Pairs of a uri that is gone and the one under which the same object lies now.
create or replace temp table moved (old_uri varchar, uri varchar)
