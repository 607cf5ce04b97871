-- How many rows each day has: days are cleaned in groups that fit in memory.
select dt, count(*) as rows from interactions group by dt
