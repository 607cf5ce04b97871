-- Rows that hold the text of a selected one, of the same user or without one: its conversation as their history, or its copy
-- in the same session. A client repeats the history letter by letter, so the beginning of the JSON is compared; as cleaned where
-- retention emptied the selected row.
-- needs: cleaned_interactions, interactions, selected
-- makes: rows into selected (workload, dt, interaction_id, request_id, alias_id, trace_id, session_id, user_hash, source,
--     source_uri, source_row, ts, content_sha256, because)
insert into selected by name
with told as (
    select
        selected.workload, selected.session_id, selected.user_hash, selected.content_sha256, interactions.emptied is not null as
            as_cleaned, coalesce(interactions.messages, cleaned_interactions.messages) as said
    from selected
    join interactions using (workload, interaction_id)
    left join cleaned_interactions
        on cleaned_interactions.workload = selected.workload
        and cleaned_interactions.interaction_id = selected.interaction_id
        and interactions.emptied is not null
),
beginnings as (
    select * exclude (said), said[:length(said) - 1] || ',' as beginning from told where said is not null
),
repeating as (
    select interactions.workload, interactions.interaction_id, beginnings.user_hash as told_by
    from interactions
    join beginnings
        on beginnings.workload = interactions.workload
        and (
            beginnings.session_id is not distinct from interactions.session_id
            and beginnings.content_sha256 = interactions.content_sha256
            or not as_cleaned and starts_with(interactions.messages, beginnings.beginning)
        )
    union all
    select cleaned_interactions.workload, cleaned_interactions.interaction_id, beginnings.user_hash
    from cleaned_interactions
    join beginnings
        on as_cleaned
        and beginnings.workload = cleaned_interactions.workload
        and starts_with(cleaned_interactions.messages, beginnings.beginning)
)
select distinct
    workload, dt, interaction_id, request_id, alias_id, trace_id, session_id, user_hash, source, source_uri, source_row, ts,
    content_sha256, 'same text' as because
from interactions
join repeating using (workload, interaction_id)
anti join selected using (workload, interaction_id)
where user_hash is null or told_by is null or user_hash = told_by
