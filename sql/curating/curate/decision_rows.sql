select
    $workload as workload, 'curate' as stage, $version as version, dt, interaction_id, rule, coalesce(kept, false) as kept,
    detail, kept_id
from decided
order by interaction_id
