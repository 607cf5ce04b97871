-- Records that a format skips: error_code is 'skipped', the rule is in message.
-- needs: skipped, staged
-- parameters: $workload
-- makes: rows into skipped (object, row, workload, rule)
insert into skipped
select object, row, $workload as workload, message as rule
from staged
where error_code = 'skipped'
