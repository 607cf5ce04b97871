-- Days whose cleaned rows are not those of `interactions`: rows that arrived late, changed, or went.
with changed as (
    (select dt, interaction_id, content_sha256 from interactions
     except
     select dt, interaction_id, content_sha256 from cleaned_interactions)
    union all
    (select dt, interaction_id, content_sha256 from cleaned_interactions
     except
     select dt, interaction_id, content_sha256 from interactions)
)
select distinct dt
from changed
order by dt
