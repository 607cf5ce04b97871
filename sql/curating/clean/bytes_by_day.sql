-- Bytes of text per day. Days are cleaned in parts that fit in memory.
-- needs: interactions
-- makes: rows (dt, bytes)
select
    dt, sum(coalesce(strlen(messages), 0) + coalesce(strlen(completion), 0) + coalesce(strlen(tools), 0))::bigint as bytes
from interactions
group by dt
