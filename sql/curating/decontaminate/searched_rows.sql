-- Rows of the days to search.
-- needs: cleaned_interactions, days_to_search
-- makes: temp view searched_rows (row_id, messages, completion)
create or replace temp view searched_rows as
select interaction_id as row_id, messages, completion
from cleaned_interactions
where status = 'ok' and dt in (select dt from days_to_search)
