-- Rows with the cluster that their quota is computed for: the prompt shape, or one cluster where nothing is balanced.
-- needs: assigned_splits, dropped_rows
-- parameters: $balance
-- makes: temp table clustered (*, cluster)
create or replace temp table clustered as
select *, case when $balance = 'none' then '' else coalesce(prompt_shape, '') end as cluster
from assigned_splits
where row_id not in (select row_id from dropped_rows)
