-- Interactions whose cleaned rows may hold what a selected one says: itself, and requests that go on from its response, and from
-- theirs, whatever user they have: cleaning puts the turns before them.
-- needs: interactions, selected
-- makes: temp table derived (workload, interaction_id)
create or replace temp table derived as
with recursive walk as (
    select workload, source, request_id, interaction_id from selected
    union
    select interactions.workload, interactions.source, interactions.request_id, interactions.interaction_id
    from interactions
    join walk
        on walk.workload = interactions.workload and walk.source = interactions.source
        and walk.request_id = interactions.params ->> '$.context.previous_response_id'
    where contains(interactions.params, '"previous_response_id"')
)
select distinct workload, interaction_id from walk
