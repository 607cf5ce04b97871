-- What there is to sample from.
select source, count(*) as rows from placed where split = 'train' group by source order by source
