-- Records that another copy of the same request stands for.
select count(*) as rows, count(*) filter ((detail ->> '$.same_content') = 'false') as with_other_content
from decisions
where stage = 'ingest' and rule in ('repeated_record', 'repeated_id')
