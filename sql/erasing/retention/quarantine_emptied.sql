-- A workload's quarantine, without the bytes of records of objects whose last day is before $first_day; and whether a record
-- loses them now. $since: the first day of what stays at all, or null.
-- needs: objects, quarantine
-- parameters: $first_day, $since, $workload
-- makes: rows (*)
with aged as (
    select quarantine.*, raw is not null and coalesce(
            list_max(objects.days) < $first_day and ($since::date is null or list_max(objects.days) >= $since::date), false
        ) as is_emptied
    from quarantine
    left join objects on objects.workload = quarantine.workload and objects.uri = quarantine.source_uri
    where quarantine.workload = $workload
)
select * replace (if(is_emptied, null, raw) as raw)
from aged
