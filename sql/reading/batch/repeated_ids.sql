-- Records of the batch that are dropped because an earlier one with their id has other contents, by source.
-- needs: batch, row_decisions
-- makes: rows (source, records)
select batch.source, count(*) as records
from row_decisions
inner join batch using (object)
where fresh and not kept and rule = 'repeated_id'
group by batch.source
