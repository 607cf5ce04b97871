-- Objects whose halves are pairs with another object's, either way.
select object, asked_object as other
from pairing
where candidates = 1 and object <> asked_object
union
select asked_object, object
from pairing
where candidates = 1 and object <> asked_object
