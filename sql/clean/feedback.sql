-- What people said about each interaction, as one number. A record counts for the rows that its most telling id names:
-- interaction, else request, else trace, else session; a row listens to the most telling records only. Of several records of
-- one name the newest holds (a person may change a thumb); of several names the lowest: one complaint is enough.
create or replace temp table verdicts as
with said as (
    select
        name, value, ts,
        case
            when interaction_id is not null then 1
            when request_id is not null then 2
            when trace_id is not null then 3
            when session_id is not null then 4
        end as telling,
        coalesce(interaction_id, request_id, trace_id, session_id) as about
    from feedback
    where value is not null and not isnan(value)
),
named as (
    select interaction_id, 1 as telling, interaction_id as about from conversations
    union all
    select interaction_id, 2, request_id from conversations where request_id is not null
    union all
    select interaction_id, 2, alias_id from conversations where alias_id is not null
    union all
    select interaction_id, 3, trace_id from conversations where trace_id is not null
    union all
    select interaction_id, 4, session_id from conversations where session_id is not null
),
heard as (
    select
        named.interaction_id, said.name, said.value, said.ts, named.telling,
        min(named.telling) over (partition by named.interaction_id) as most_telling
    from named
    join said using (telling, about)
),
newest as (
    select interaction_id, name, arg_max(value, (ts, -value)) as value
    from heard
    where telling = most_telling
    group by interaction_id, name
)
select interaction_id, min(value) as value
from newest
group by interaction_id
