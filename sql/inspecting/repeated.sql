-- Number of records that are copies of another record.
-- needs: decisions
-- makes: rows (rows, with_other_content)
select count(*) as rows, count(*) filter ((detail ->> '$.same_content') = 'false') as with_other_content
from decisions
where stage = 'ingest' and rule in ('repeated_record', 'repeated_id')
