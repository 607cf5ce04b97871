-- The rows of the dataset: all held-out ones, and of each cluster of prompts of a source as many for
-- training as its quota allows, drawn by hash.
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
