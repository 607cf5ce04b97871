-- What there is to sample from.
select source, cluster, count(*) as rows from clustered where split = 'train' group by source, cluster order by source, cluster
