-- How much text each day holds: days are cleaned in parts that fit in memory.
select
    dt, sum(strlen(messages) + coalesce(strlen(completion), 0) + coalesce(strlen(tools), 0))::bigint as bytes
from interactions
group by dt
