-- Feedback with its most specific id: interaction, else request, trace, session. own_interaction_id is the id in the record
-- itself, without the id that an earlier run tied it to.
-- needs: feedback
-- makes: temp view feedback_by_id (*, id_rank, named_id)
create or replace temp view feedback_by_id as
select
    * exclude (id_rank),
    id_rank,
    case id_rank when 1 then own_interaction_id when 2 then request_id when 3 then trace_id when 4 then session_id end as named_id
from (
    select
        *,
        case when tie is null then interaction_id else given_id end as own_interaction_id,
        case
            when own_interaction_id is not null then 1
            when request_id is not null then 2
            when trace_id is not null then 3
            when session_id is not null then 4
        end as id_rank
    from feedback
)
