-- Numbers of ids that do not identify a record, and of the batch's records that have them, by source.
-- needs: loose_ids
-- makes: rows (source, ids, records)
select source, count(distinct request_id) as ids, count(*) as records
from loose_ids
group by source
