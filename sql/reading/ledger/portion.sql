-- A portion of the waiting objects, without those that were read in the meantime.
-- needs: ledger, waiting_objects
-- parameters: $after, $count
-- makes: rows (ledger.*)
select ledger.*
from ledger
inner join waiting_objects using (source, uri)
where place > $after and place <= $after + $count and ledger.state <> 'read'
order by place
