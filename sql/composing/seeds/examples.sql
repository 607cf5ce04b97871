-- One example per staged record, in file and line order. A conversation gives its last answer, which contains the others; a
-- preference gives the chosen answer. A quarantined record has a `problem`. $turns: formats whose records are conversations
-- needs: batch, labels_of(), quarantined, staged, staged_feedback
-- parameters: $turns
-- makes: rows (*)
with ranked as (
    select *, max(part) over (partition by object, row) as last_part
    from staged
),

rejected as (
    select distinct interaction_id
    from staged_feedback
    where extra and name = 'preference' and value < 0
),

found as (
    select
        source, source_uri, source_row, part, status, source_format, request_id, alias_id, session_id, user_hash, messages, tools, completion, reasoning,
        case when status = 'tokens' then list_concat(prompt_token_ids, completion_token_ids) end as token_ids,
        case when status = 'tokens' then labels_of(prompt_token_ids, completion_token_ids, params) end as labels,
        cast(null as varchar) as problem
    from ranked
    anti join rejected using (interaction_id)
    where part = last_part or not list_contains($turns, source_format)
    union all by name
    select batch.source, batch.uri as source_uri, quarantined.row as source_row, quarantined.message as problem
    from quarantined
    inner join batch using (object)
    union all by name
    select batch.source, batch.uri as source_uri, staged_feedback.source_row, 'feedback is no example to learn from' as problem
    from staged_feedback
    inner join batch using (object)
    where not staged_feedback.extra
)

select * exclude (part)
from found
order by source_uri, source_row, part, problem
