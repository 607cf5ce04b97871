-- Pairs of objects that hold the two sides of a record, in both directions.
-- needs: pair_matches
-- makes: rows (object, other)
select object, request_object as other
from pair_matches
where candidates = 1 and object <> request_object
union
select request_object, object
from pair_matches
where candidates = 1 and object <> request_object
