-- Training rows of another dataset as examples. Their ids stay; an interaction's id becomes a seed's.
-- needs: once
-- makes: rows (row_id, messages, tools, request, text, token_ids, labels, content_sha256, synthetic, session_id,
--     interaction_ids)
select
    if(starts_with(row_id, 'seed:'), row_id, 'seed:' || left(content_sha256, 24)) as row_id, messages, tools, request, text,
    token_ids, labels, content_sha256, synthetic, session_id, interaction_ids
from once
order by row_id
