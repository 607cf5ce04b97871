-- Rows of one split, in shuffled order. A row that is repeated stands in it several times; its further copies have the reason
-- `repeated`.
-- needs: sampled, sampled_texts
-- parameters: $split
-- makes: rows (row_id, origin, source, session_id, workload, ts, messages, tools, request, text, token_ids, labels,
--     prompt_shape, content_sha256, interaction_ids, quality, difficulty, split, weight, reason, synthetic, language)
with copied as (
    select *, unnest(range(copies)) as copy
    from sampled
    where split = $split and copies > 0
)
select
    row_id, origin, source, session_id, workload, ts, messages, tools, request, text, token_ids, labels,
    prompt_shape, content_sha256, interaction_ids, quality, difficulty, split, weight,
    if(copy > 0, 'repeated', reason) as reason, synthetic, language
from copied
join sampled_texts using (row_id, origin)
order by if(copy > 0, md5(draw || copy), draw), row_id
