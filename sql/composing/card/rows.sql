-- The rows that the card describes: those of the files of a dataset.
-- placeholders: files
-- makes: temp view card_rows (split, source, synthetic, weight, prompt_shape, language, text, messages)
create or replace temp view card_rows as
select split, source, synthetic, weight, prompt_shape, language, text, messages
from read_parquet([{files}])
