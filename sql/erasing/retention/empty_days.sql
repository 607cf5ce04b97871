-- Days with rows to empty: cleaned as they are, and not emptied yet.
-- needs: cleaned_interactions, interactions
-- makes: rows (dt, rows)
select dt, count(*) as rows
from interactions
semi join cleaned_interactions using (dt, interaction_id, content_sha256)
where emptied is null
group by dt
order by dt
