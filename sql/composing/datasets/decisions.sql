-- The decision on every curated row and every seed: in the dataset, contained in a longer row, left out, or sampled out.
-- needs: contained_rows, curated, dropped_rows, sampled, seeds
-- parameters: $version
-- makes: rows (workload, stage, version, dt, interaction_id, rule, kept, detail, kept_id)
with decided as (
    select workload, dt, interaction_id, null as seed from curated
    union all
    select (select any_value(workload) from curated), null, row_id, source from seeds
),
outcomes as (
    select
        decided.*, contained_rows.container_id, dropped_rows.rule as dropped, dropped_rows.kept_id as dropped_for,
        dropped_rows.detail, sampled.split, sampled.source, sampled.cluster, sampled.quota, sampled.source_quota,
        coalesce(sampled.copies, 0) > 0 as chosen
    from decided
    left join contained_rows using (interaction_id)
    left join dropped_rows on dropped_rows.row_id = coalesce(contained_rows.container_id, decided.interaction_id)
    left join sampled on sampled.row_id = coalesce(contained_rows.container_id, decided.interaction_id)
)
select
    workload, 'dataset' as stage, $version as version, dt, interaction_id,
    case
        when dropped is not null then dropped
        when not chosen and source_quota = 0 then 'source_not_in_mix'
        when not chosen then 'sampled_out'
        when container_id is not null then 'subsumed_by_later_turn'
        else 'kept'
    end as rule,
    chosen as kept,
    case
        when dropped is not null then detail
        when chosen then split
        when source_quota > 0 and cluster <> '' then printf('%s gave %d rows', cluster, quota)
        when source_quota > 0 then printf('%s gave %d rows', source, quota)
    end as detail,
    coalesce(dropped_for, container_id) as kept_id
from outcomes
order by interaction_id
