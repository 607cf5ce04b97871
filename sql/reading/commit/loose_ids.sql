-- Records whose id does not identify them: their source has three records or more of other contents with it, or two where the
-- id is weak. own_id: what identifies them, by content and time. Records that were dropped before count too, so that the order of
-- reading does not matter; what the objects of the batch held before does not.
-- needs: decisions, interactions, is_weak_id(), reread, staged
-- makes: temp table loose_ids (object, row, part, source, workload, request_id, interaction_id, own_id)
create or replace temp table loose_ids as
with named as (
    select distinct source, workload, request_id, choice_index, interaction_id, is_weak_id(request_id) as weak
    from staged
    where request_id is not null
        -- of a served request: ids of data sets have a digest beside them
        and interaction_id = sha256(concat_ws(chr(31), source, 'id:' || request_id, choice_index))
),

contents as (
    select workload, interaction_id, content_sha256, weak
    from staged
    inner join named using (workload, interaction_id)
    union
    select workload, named.interaction_id, interactions.content_sha256, weak
    from interactions
    inner join named using (source, workload, request_id, choice_index)
    anti join reread on interactions.source_uri = reread.uri
    union
    select workload, interaction_id, decisions.detail ->> '$.content_sha256' as content_sha256, weak
    from decisions
    inner join named using (workload, interaction_id)
    anti join reread on decisions.detail ->> '$.uri' = reread.uri
    where decisions.stage = 'ingest'
),

loose as (
    select workload, interaction_id
    from contents
    group by workload, interaction_id
    having count(distinct content_sha256) >= if(bool_or(weak), 2, 3)
)

select
    object, row, part, source, workload, request_id, interaction_id,
    sha256(concat_ws(chr(31), interaction_id, content_sha256, epoch_us(ts))) as own_id
from staged
semi join loose using (workload, interaction_id)
