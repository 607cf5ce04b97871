-- What an erasure changes in a table, by partition. Table and column are names in our code, never input.
-- needs: <marked>
-- placeholders: marked, partition
-- makes: rows (workload, part, changed)
select workload, {partition} as part, count(*) as changed
from {marked}
where change is not null
group by all
order by all
