-- Rows of one split, in shuffled order.
-- needs: sampled
-- parameters: $split
-- makes: rows (row_id, origin, source, session_id, workload, ts, messages, tools, request, text, token_ids, labels,
--     prompt_shape, content_sha256, interaction_ids, quality, difficulty)
select
    row_id, origin, source, session_id, workload, ts, messages, tools, request, text, token_ids, labels,
    prompt_shape, content_sha256, interaction_ids, quality, difficulty
from sampled
where split = $split and chosen
order by draw, row_id
