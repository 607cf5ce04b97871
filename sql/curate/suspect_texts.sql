select place, near_text
from texts
join standing using (interaction_id)
