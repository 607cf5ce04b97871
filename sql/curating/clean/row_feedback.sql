-- People's feedback on each interaction as one number. A record counts for the rows that its most specific id names, and a row
-- takes only the most specific records. Of several records with one name the newest counts (a person may change a thumb);
-- across names the lowest: one complaint is enough. Below the least good value of its name, a value counts as below zero.
-- needs: feedback_by_id, interaction_ids
-- parameters: $names, $least
-- makes: temp table row_feedback (interaction_id, value)
create or replace temp table row_feedback as
with bounded as (
    select *, map(cast($names as varchar[]), cast($least as double[]))[name] as least
    from feedback_by_id
    where value is not null and not isnan(value)
),
valued as (
    select
        name, ts, id_rank, named_id,
        case
            when least is null then value
            when value < least then value - least
            else greatest(value, value - least)
        end as value
    from bounded
),
matched as (
    select
        interaction_ids.interaction_id, valued.name, valued.value, valued.ts, interaction_ids.id_rank,
        min(interaction_ids.id_rank) over (partition by interaction_ids.interaction_id) as best_rank
    from interaction_ids
    join valued using (id_rank, named_id)
),
newest as (
    select interaction_id, name, arg_max(value, (ts, -value)) as value
    from matched
    where id_rank = best_rank
    group by interaction_id, name
)
select interaction_id, min(value) as value
from newest
group by interaction_id
