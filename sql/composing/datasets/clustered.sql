-- The rows with the cluster that their quota goes by: the prompt's shape, or one for all where nothing is balanced.
-- $balance
create or replace temp table clustered as
select *, case when $balance = 'none' then '' else coalesce(prompt_shape, '') end as cluster
from placed
