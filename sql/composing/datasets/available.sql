-- Training rows to sample from, by source and cluster.
-- needs: clustered
-- makes: rows (source, synthetic, cluster, rows)
select source, synthetic, cluster, count(*) as rows
from clustered
where split = 'train'
group by all
order by all
