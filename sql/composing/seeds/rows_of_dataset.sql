-- Training rows of another dataset, each once. Datasets of earlier versions do not say what is synthetic.
-- needs: dataset_rows
-- placeholders: synthetic
-- makes: temp view once (row_id, messages, tools, request, text, token_ids, labels, content_sha256, synthetic, session_id,
--     interaction_ids)
create or replace temp view once as
select
    row_id, messages, tools, request, text, token_ids, labels, content_sha256, {synthetic} as synthetic, session_id,
    interaction_ids
from dataset_rows
qualify row_number() over (partition by row_id) = 1
