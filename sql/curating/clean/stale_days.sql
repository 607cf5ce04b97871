-- Days to clean again: rows arrived late, changed or were removed, or the day was cleaned with other rules or code. The cleaned
-- row of an emptied one stays as it is, since nothing is left to clean.
-- needs: cleaned_interactions, interactions
-- parameters: $cleaned_with
-- makes: rows (dt)
with changed as (
    (select dt, interaction_id, content_sha256 from interactions where emptied is null
     except
     select dt, interaction_id, content_sha256 from cleaned_interactions)
    union all
    (select dt, interaction_id, content_sha256 from cleaned_interactions
     except
     select dt, interaction_id, content_sha256 from interactions)
)
select distinct dt from changed
union
select distinct dt
from cleaned_interactions
anti join (select dt, interaction_id from interactions where emptied is not null) as emptied using (dt, interaction_id)
where $cleaned_with is not null and cleaned_with is distinct from $cleaned_with
order by dt
