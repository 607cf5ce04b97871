-- Rows outside the bounds on length and on the answer's share. Rows of token ids have no characters, plain texts no prompt.
create or replace temp table failed_length as
with judged as (
    select
        texts.interaction_id,
        case
            when prompt_characters < $min_prompt and cleaned.status is distinct from 'text' then struct_pack(rule := 'prompt_too_short', value := prompt_characters)
            when prompt_characters > $max_prompt then struct_pack(rule := 'prompt_too_long', value := prompt_characters)
            when completion_characters < $min_answer then struct_pack(rule := 'answer_too_short', value := completion_characters)
            when completion_characters > $max_answer then struct_pack(rule := 'answer_too_long', value := completion_characters)
            when prompt_characters > 0 and completion_characters < $min_ratio * prompt_characters
                then struct_pack(rule := 'ratio_too_low', value := completion_characters / prompt_characters)
            when prompt_characters > 0 and completion_characters > $max_ratio * prompt_characters
                then struct_pack(rule := 'ratio_too_high', value := completion_characters / prompt_characters)
        end as found
    from texts
    join cleaned using (interaction_id)
    where cleaned.status is distinct from 'tokens'
)
select interaction_id, 5 as place, found.rule, printf('%.6g', found.value::double) as detail
from judged
where found is not null
