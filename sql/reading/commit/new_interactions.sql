-- The batch's rows for `interactions`. A row that retention has emptied stays emptied when its object is read again.
-- needs: emptied_before, row_decisions, staged
-- makes: temp view new_interactions (staged.*, emptied)
create or replace temp view new_interactions as
select
    staged.* exclude (object, row, part, error_code, message) replace (
        if(emptied is null, messages, null) as messages,
        if(emptied is null, tools, null) as tools,
        if(emptied is null, completion, null) as completion,
        if(emptied is null, reasoning, null) as reasoning,
        if(emptied is null, error, null) as error,
        if(emptied is null, staged.params, emptied_before.params) as params,
        if(emptied is null, staged.prompt_token_ids, emptied_before.prompt_token_ids) as prompt_token_ids,
        if(emptied is null, staged.completion_token_ids, emptied_before.completion_token_ids) as completion_token_ids
    ),
    emptied_before.emptied
from staged
anti join (select object, row, part from row_decisions where fresh and not kept) as left_out using (object, row, part)
left join emptied_before using (workload, dt, interaction_id, content_sha256)
