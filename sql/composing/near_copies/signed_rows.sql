-- Signatures of curated rows, with the conversation that each is part of and its split: 0 test, 1 validation, 2 training.
-- needs: assigned_splits, contained_rows, curated
-- makes: rows (row_id, conversation_id, place, signature)
select
    curated.interaction_id as row_id,
    coalesce(container_id, curated.interaction_id) as conversation_id,
    case assigned_splits.split when 'test' then 0 when 'validation' then 1 else 2 end as place,
    signature
from curated
left join contained_rows using (interaction_id)
join assigned_splits on assigned_splits.row_id = coalesce(container_id, curated.interaction_id)
where len(signature) > 0
order by place, row_id
