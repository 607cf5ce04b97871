-- For resources/curating/decontamination.py: seeds as rows to be searched.
create or replace temp view searched_rows as
select
    row_id,
    messages,
    case when text is not null then to_json(struct_pack("role" := 'assistant', "content" := text)) end as completion
from seeds
