-- The signatures of the rows that stand, best first.
select standing.place, signature
from cleaned_interactions
join standing using (interaction_id)
where standing.place = standing.stands_for and len(signature) > 0
order by standing.place
