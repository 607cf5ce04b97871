-- The first rule that each row breaks, in the order of the rule groups. Rows with positive feedback pass the rules on style
-- (language and after) where the recipe says so.
-- needs: failed_language, failed_length, failed_refusal, failed_repetition, failed_status, failed_tools, row_feedback
-- parameters: $keep_thumbs_up
-- makes: temp table broken_rules (interaction_id, rule, detail)
create or replace temp table broken_rules as
with failed as (
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
    select failed.*
    from failed
    left join row_feedback using (interaction_id)
    where place <= 2 or not ($keep_thumbs_up and coalesce(row_feedback.value, 0) > 0)
)
select interaction_id, arg_min(rule, place) as rule, arg_min(coalesce(detail, ''), place) as detail
from counted
group by interaction_id
