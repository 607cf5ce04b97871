-- Training rows by source.
-- needs: card_rows
-- makes: rows (source, synthetic, rows, share, weight)
select
    source, synthetic, count(*)::bigint as rows, count(*) / sum(count(*)) over () as share,
    avg(weight) as weight
from card_rows
where split = 'train'
group by source, synthetic
order by source, synthetic
