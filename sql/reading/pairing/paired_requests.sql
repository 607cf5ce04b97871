-- Requests that are part of a record which counts at its response's place, by object.
select asked_object, count(distinct asked_row)
from pairing
where candidates = 1
group by asked_object
