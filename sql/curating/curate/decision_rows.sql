-- Curation's decisions as rows of the table `decisions`.
-- needs: decided
-- parameters: $version, $workload
-- makes: rows (workload, stage, version, dt, interaction_id, rule, kept, detail, kept_id)
select
    $workload as workload, 'curate' as stage, $version as version, dt, interaction_id, rule, coalesce(kept, false) as kept,
    detail, kept_id
from decided
order by interaction_id
