-- Number of requests that count as part of their response's record, by object.
-- needs: pair_matches
-- makes: rows (request_object, count)
select request_object, count(distinct request_row)
from pair_matches
where candidates = 1
group by request_object
