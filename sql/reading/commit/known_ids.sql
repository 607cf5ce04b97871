-- Ids of the batch that the table `interactions` already has. Only its id column is read.
-- needs: interactions, staged
-- makes: temp table known_ids (workload, interaction_id)
create or replace temp table known_ids as
select distinct workload, interaction_id
from interactions
semi join staged using (workload, interaction_id)
