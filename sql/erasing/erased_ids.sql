-- Ids that only erased interactions have: feedback that names one of them is about erased text.
-- needs: known_interactions, selected
-- makes: temp table erased_ids (named.*)
create or replace temp table erased_ids as
with theirs as (
    select
        workload, interaction_id as own,
        unnest([
            struct_pack(kind := 'interaction', id := interaction_id), struct_pack(kind := 'about', id := request_id),
            struct_pack(kind := 'about', id := alias_id), struct_pack(kind := 'about', id := trace_id),
            struct_pack(kind := 'session', id := session_id)
        ]) as named
    from selected
),
named as (
    select distinct workload, named.kind as kind, named.id as id from theirs where named.id is not null
),
staying as (
    select workload, unnest([request_id, alias_id, trace_id, session_id]) as id
    from known_interactions
    anti join selected using (workload, interaction_id)
    where request_id in (select id from named) or alias_id in (select id from named) or trace_id in (select id from named)
        or session_id in (select id from named)
)
select named.* from named anti join staying using (workload, id)
