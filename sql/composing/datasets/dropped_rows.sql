-- One reason for each row that the dataset leaves out before sampling, by the first rule that applies. kept_id: the row that the
-- dataset has instead (a conversation is named by its longest row).
-- needs: branches_of_held_out, contained_rows, near_copies, repeated_seeds, unwanted_rows
-- makes: temp table dropped_rows (row_id, rule, kept_id, detail)
create or replace temp table dropped_rows as
with found as (
    select row_id, 1 as choice, rule, held_id, null::double as similarity from repeated_seeds
    union all
    select row_id, 2, rule, held_id, similarity from near_copies
    union all
    select row_id, 3, rule, held_id, null from branches_of_held_out
    union all
    select row_id, 4, rule, null, null from unwanted_rows
),
first as (
    select row_id, arg_min(struct_pack(rule, held_id, similarity), (choice, held_id)) as chosen
    from found
    group by row_id
)
select
    first.row_id, chosen.rule as rule, coalesce(contained_rows.container_id, chosen.held_id) as kept_id,
    case when chosen.similarity is not null then printf('similarity %.2f', chosen.similarity) end as detail
from first
left join contained_rows on contained_rows.interaction_id = chosen.held_id
