-- Objects that are in quarantine as a whole, by code and reason. A message is "reason; remedy".
-- needs: batch, quarantined
-- makes: rows (reason, objects, first_uri, message)
select
    regexp_replace(split_part(message, ';', 1), ' [0-9]+', ' #', 'g') as reason, count(*) as objects, min(batch.uri) as first_uri,
    concat(error_code, ': ', arg_min(message, batch.uri)) as message
from quarantined
inner join batch using (object)
where quarantined.row = 0
group by error_code, reason
order by first_uri
