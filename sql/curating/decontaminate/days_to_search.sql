-- Days that were not searched for these items yet.
-- needs: contamination, day_contents
-- parameters: $searched
-- makes: temp table days_to_search (dt)
create or replace temp table days_to_search as
select dt
from day_contents
anti join contamination on contamination.dt = day_contents.dt and contamination.content = day_contents.content
    and contamination.searched = $searched and contamination.interaction_id is null
