-- How often each row is in the dataset (`copies`): once if it is held out, else as often as its cluster's quota gives, drawn by
-- hash of its id and the seed. weight: rows in the split for each row that its cluster has.
-- needs: clustered, quotas
-- parameters: $seed
-- makes: temp table sampled (ranked.*, copies, quota, source_quota, weight, reason)
create or replace temp table sampled as
with shuffled as (
    select *, md5($seed || ':row:' || row_id) as draw from clustered
),
ranked as (
    select
        *,
        row_number() over (partition by split, source, synthetic, cluster order by draw, row_id) as turn,
        count(*) over (partition by split, source, synthetic, cluster) as cluster_rows
    from shuffled
)
select
    ranked.* exclude (turn, cluster_rows),
    if(split = 'train', quotas.copies + if(turn <= quotas.more, 1, 0), 1) as copies,
    quotas.copies * cluster_rows + quotas.more as quota,
    quotas.source_rows as source_quota,
    if(split = 'train', (quotas.copies * cluster_rows + quotas.more) / cluster_rows, 1.0) as weight,
    case
        when split <> 'train' then 'held_out'
        when quotas.copies * cluster_rows + quotas.more < cluster_rows then 'sampled'
        else 'all'
    end as reason
from ranked
left join quotas using (source, synthetic, cluster)
