-- What people said about each interaction, as one number. A record counts for the rows that its most telling id names, and a row
-- listens to the most telling records only. Of several records of one name the newest holds (a person may change a thumb); of
-- several names the lowest: one complaint is enough.
create or replace temp table verdicts as
with said as (
    select name, value, ts, telling, about
    from feedback_said
    where value is not null and not isnan(value)
),
heard as (
    select
        feedback_names.interaction_id, said.name, said.value, said.ts, feedback_names.telling,
        min(feedback_names.telling) over (partition by feedback_names.interaction_id) as most_telling
    from feedback_names
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
