-- Some of those that wait; those that were read in the meantime are left out.
select ledger.*
from ledger
inner join waiting_objects using (source, uri)
where place > $after and place <= $after + $count and ledger.state <> 'read'
order by place
