-- Rows that hold the text of a selected one, of the same user or without one: its conversation as their history, or its copy
-- in the same session. A client repeats the history letter by letter, so the beginning of the JSON is compared.
-- needs: interactions, selected
-- makes: rows into selected (workload, dt, interaction_id, request_id, alias_id, trace_id, session_id, user_hash, source,
--     source_uri, source_row, ts, content_sha256, because)
insert into selected by name
with told as (
    select
        selected.workload, selected.session_id, selected.user_hash, selected.content_sha256,
        interactions.messages[:length(interactions.messages) - 1] || ',' as beginning
    from selected
    join interactions using (workload, interaction_id)
    where interactions.messages is not null
)
select distinct
    interactions.workload, dt, interaction_id, request_id, alias_id, trace_id, interactions.session_id, interactions.user_hash,
    source, source_uri, source_row, ts, interactions.content_sha256, 'same text' as because
from interactions
join told
    on told.workload = interactions.workload
    and (
        told.session_id is not distinct from interactions.session_id and told.content_sha256 = interactions.content_sha256
        or starts_with(interactions.messages, told.beginning)
    )
anti join selected on selected.workload = interactions.workload and selected.interaction_id = interactions.interaction_id
where interactions.user_hash is null or told.user_hash is null or interactions.user_hash = told.user_hash
