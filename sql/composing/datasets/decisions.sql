-- The decision on every curated row: in the dataset, contained in a longer row, or sampled out.
-- needs: contained_rows, curated, sampled
-- parameters: $version
-- makes: rows (workload, stage, version, dt, interaction_id, rule, kept, detail, kept_id)
select
    curated.workload, 'dataset' as stage, $version as version, curated.dt, curated.interaction_id,
    case
        when not sampled.chosen and sampled.source_quota = 0 then 'source_not_in_mix'
        when not sampled.chosen then 'sampled_out'
        when contained_rows.container_id is not null then 'subsumed_by_later_turn'
        else 'kept'
    end as rule,
    sampled.chosen as kept,
    case
        when sampled.chosen then sampled.split
        when sampled.source_quota > 0 and sampled.cluster <> '' then printf('%s gave %d rows', sampled.cluster, sampled.quota)
        when sampled.source_quota > 0 then printf('%s gave %d rows', sampled.source, sampled.quota)
    end as detail,
    contained_rows.container_id as kept_id
from curated
left join contained_rows using (interaction_id)
join sampled on sampled.row_id = coalesce(contained_rows.container_id, curated.interaction_id)
order by curated.interaction_id
