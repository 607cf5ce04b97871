-- For clean/texts.sql: the rows whose similarity must be known exactly.
create or replace temp view conversations as
select place, cleaned_interactions.interaction_id, cleaned_interactions.messages, cleaned_interactions.completion
from suspects
join standing using (place)
join cleaned_interactions using (interaction_id)
