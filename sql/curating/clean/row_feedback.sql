-- People's feedback on each interaction as one number. A record counts for the rows that its most specific id names, and a row
-- takes only the most specific records. Of several records with one name the newest counts (a person may change a thumb);
-- across names the lowest: one complaint is enough.
-- needs: feedback_by_id, interaction_ids
-- makes: temp table row_feedback (interaction_id, value)
create or replace temp table row_feedback as
with valued as (
    select name, value, ts, id_rank, named_id
    from feedback_by_id
    where value is not null and not isnan(value)
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
