-- Drops rows outside the bounds on length. Token rows have no characters, plain texts no prompt.
-- needs: cleaned, texts
-- parameters: $max_answer, $max_prompt, $min_answer, $min_prompt
-- makes: temp table failed_length (interaction_id, place, rule, detail)
create or replace temp table failed_length as
with tested as (
    select
        texts.interaction_id,
        case
            when prompt_characters < $min_prompt and cleaned.status is distinct from 'text' then struct_pack(rule := 'prompt_too_short', value := prompt_characters)
            when prompt_characters > $max_prompt then struct_pack(rule := 'prompt_too_long', value := prompt_characters)
            when completion_characters < $min_answer then struct_pack(rule := 'answer_too_short', value := completion_characters)
            when completion_characters > $max_answer then struct_pack(rule := 'answer_too_long', value := completion_characters)
        end as found
    from texts
    join cleaned using (interaction_id)
    where cleaned.status is distinct from 'tokens'
)
select interaction_id, 5 as place, found.rule, printf('%.6g', found.value::double) as detail
from tested
where found is not null
