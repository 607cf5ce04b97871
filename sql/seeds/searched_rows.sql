-- For resources/decontamination.py: seeds as rows to be searched.
create or replace temp view searched_rows as
select row_id, messages, cast(null as varchar) as completion
from seeds
