-- Ids that only erased records of the batch have: feedback that names one of them is about erased text, whichever was read first.
-- needs: interactions, reread, row_decisions, staged
-- parameters: $user_hash_key
-- makes: temp table newly_erased_ids (id, sha256)
create or replace temp table newly_erased_ids as
with gone as (
    select object, row, part from row_decisions where rule = 'erased'
),
named as (
    select distinct unnest([interaction_id, request_id, alias_id, trace_id, session_id]) as id
    from staged
    semi join gone using (object, row, part)
),
staying as (
    select unnest([interaction_id, request_id, alias_id, trace_id, session_id]) as id
    from staged
    anti join gone using (object, row, part)
    where exists (select 1 from gone)
    union all
    select unnest([interaction_id, request_id, alias_id, trace_id, session_id])
    from interactions
    anti join reread on interactions.source_uri = reread.uri
    where exists (select 1 from gone)
        and (
            interaction_id in (select id from named) or request_id in (select id from named) or alias_id in (select id from named)
            or trace_id in (select id from named) or session_id in (select id from named)
        )
)
select id, sha256(concat($user_hash_key, chr(31), id)) as sha256
from named
anti join staying using (id)
where id is not null
