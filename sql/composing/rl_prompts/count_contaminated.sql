-- Number of prompts that contain an evaluation item.
-- needs: contaminated, prompt_rows
-- makes: rows (rows)
select count(*) as rows from prompt_rows where row_id in (select interaction_id from contaminated)
