-- Feedback with its most telling id: interaction, else request, else trace, else session. The interaction's id is the one that the
-- record itself gave; what it was tied to later on (sql/feedback) is no word of its own.
create or replace temp view feedback_said as
select
    * exclude (telling),
    telling,
    case telling when 1 then given when 2 then request_id when 3 then trace_id when 4 then session_id end as about
from (
    select
        *,
        case when tie is null then interaction_id else given_id end as given,
        case
            when given is not null then 1
            when request_id is not null then 2
            when trace_id is not null then 3
            when session_id is not null then 4
        end as telling
    from feedback
)
