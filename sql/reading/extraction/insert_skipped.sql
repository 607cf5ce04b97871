-- The records that a format passes over: error_code 'skipped', the rule in message.
insert into skipped
select object, row, $workload as workload, message as rule
from staged
where error_code = 'skipped'
