-- Marks the rows of the dataset (`chosen`): all held-out rows, and the training rows that each cluster's quota allows, drawn by
-- hash.
-- needs: clustered, quotas
-- parameters: $seed
-- makes: temp table sampled (ranked.*, chosen, quota, source_quota)
create or replace temp table sampled as
with shuffled as (
    select *, md5($seed || ':row:' || row_id) as draw from clustered
),
ranked as (
    select *, row_number() over (partition by split, source, cluster order by draw, row_id) as turn from shuffled
)
select ranked.* exclude (turn), ranked.split <> 'train' or turn <= quotas.rows as chosen, quotas.rows as quota,
    quotas.source_rows as source_quota
from ranked
left join quotas using (source, cluster)
