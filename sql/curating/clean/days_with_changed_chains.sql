-- Days with rows that would now begin with another number of earlier messages than when they were cleaned.
-- needs: chains, cleaned_interactions
-- makes: rows (dt)
select distinct chains.dt
from chains
join cleaned_interactions using (interaction_id)
where len(chains.earlier) is distinct from cast(cleaned_interactions.quality['earlier_turns'] as bigint)
