-- Of each object, the keys that nothing reads and the names that contradict each other, most records first.
-- needs: batch, unread_keys
-- makes: rows (uri, kind, path, other, records)
select batch.uri, kind, path, max(other) as other, sum(records) as records
from unread_keys
inner join batch using (object)
group by batch.uri, kind, path
qualify row_number() over (partition by batch.uri, kind order by sum(records) desc, path) <= 60
order by batch.uri, kind, records desc, path
