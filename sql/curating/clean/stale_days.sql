-- Days to clean again: rows arrived late, changed or were removed, or the day was cleaned with other rules or code.
-- needs: cleaned_interactions, interactions
-- parameters: $cleaned_with
-- makes: rows (dt)
with changed as (
    (select dt, interaction_id, content_sha256 from interactions
     except
     select dt, interaction_id, content_sha256 from cleaned_interactions)
    union all
    (select dt, interaction_id, content_sha256 from cleaned_interactions
     except
     select dt, interaction_id, content_sha256 from interactions)
)
select distinct dt from changed
union
select distinct dt from cleaned_interactions where $cleaned_with is not null and cleaned_with is distinct from $cleaned_with
order by dt
