-- A workload's quarantine without the records of objects that have no record from a day on, and the number of those left out.
-- needs: objects, quarantine
-- parameters: $first_day, $workload
-- makes: rows (quarantine.*, is_old)
select quarantine.*, coalesce(list_max(objects.days) < $first_day, false) as is_old
from quarantine
left join objects on objects.workload = quarantine.workload and objects.uri = quarantine.source_uri
where quarantine.workload = $workload
