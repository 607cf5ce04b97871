-- Ids of the batch that the table already has. Of what is there, only the ids are read.
create or replace temp table met as
select distinct workload, interaction_id
from interactions
semi join staged using (workload, interaction_id)
