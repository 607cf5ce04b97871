-- The batch's rows for `feedback`. resources/reading/ties.py ties them to interactions at the end of the run.
-- needs: erased_feedback, staged_feedback
-- makes: temp view new_feedback (*, given_id, tie)
create or replace temp view new_feedback as
select * exclude (object, row, part, extra, copied), cast(null as varchar) as given_id, cast(null as varchar) as tie
from staged_feedback
anti join erased_feedback using (object, row, part)
