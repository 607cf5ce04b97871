-- Every step of an interaction, found by any of its ids: select * from why('<interaction, request, trace or session id>').
-- needs: decisions_history, interactions, steps_of()
-- makes: macro why(identifier) as rows (*)
create macro why(identifier) as table
select *
from steps_of((
    select list(interaction_id)
    from (
        select interaction_id
        from interactions
        where identifier in (interaction_id, request_id, alias_id, trace_id, session_id)
        union
        select interaction_id from decisions_history where interaction_id = identifier
    )
))
