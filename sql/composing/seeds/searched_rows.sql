-- Seeds as the rows that resources/curating/decontamination.py searches.
-- needs: seeds
-- makes: temp view searched_rows (row_id, messages, completion)
create or replace temp view searched_rows as
select
    row_id,
    messages,
    case when text is not null then to_json(struct_pack("role" := 'assistant', "content" := text)) end as completion
from seeds
