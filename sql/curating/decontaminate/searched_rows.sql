-- The rows of the days that have to be searched.
create or replace temp view searched_rows as
select interaction_id as row_id, messages, completion
from cleaned_interactions
where status = 'ok' and dt in (select dt from days_to_search)
