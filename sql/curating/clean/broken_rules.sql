-- Each row's verdict: the first rule that it breaks, in the order of the groups. What people liked passes the rules of taste
-- (language and after) where the recipe says so.
create or replace temp table judged as
with broken as (
    select * from failed_status
    union all
    select * from failed_tools
    union all
    select * from failed_language
    union all
    select * from failed_repetition
    union all
    select * from failed_length
    union all
    select * from failed_refusal
),
counted as (
    select broken.*
    from broken
    left join verdicts using (interaction_id)
    where place <= 2 or not ($keep_thumbs_up and coalesce(verdicts.value, 0) > 0)
)
select interaction_id, arg_min(rule, place) as rule, arg_min(coalesce(detail, ''), place) as detail
from counted
group by interaction_id
