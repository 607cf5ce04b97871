-- What some of the other interactions say, to know the phrases that everybody uses; as cleaned where retention emptied them.
-- needs: cleaned_interactions, derived, interactions
-- makes: rows (text)
select concat(coalesce(drawn.messages, cleaned.messages), chr(10), coalesce(drawn.completion, cleaned.completion)) as text
from (
    select workload, interaction_id, messages, completion, emptied
    from interactions using sample reservoir (1000 rows) repeatable (1)
) as drawn
left join cleaned_interactions as cleaned
    on cleaned.workload = drawn.workload and cleaned.interaction_id = drawn.interaction_id and drawn.emptied is not null
anti join derived on derived.workload = drawn.workload and derived.interaction_id = drawn.interaction_id
