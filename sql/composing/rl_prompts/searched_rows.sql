-- Prompts as the rows that resources/curating/decontamination.py searches.
-- needs: prompt_rows
-- makes: temp view searched_rows (row_id, messages, completion)
create or replace temp view searched_rows as
select row_id, messages, null::varchar as completion from prompt_rows
