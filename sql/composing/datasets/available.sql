-- Training rows to sample from, by source and cluster.
-- needs: clustered
-- makes: rows (source, cluster, rows)
select source, cluster, count(*) as rows from clustered where split = 'train' group by source, cluster order by source, cluster
