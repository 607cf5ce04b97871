-- name: feedback
-- Feedback of runs of LangSmith: the mean of each key of their feedback_stats, or its most frequent word. That of a chain is about its
-- trace.
with parsed as (
    select
        object,
        row,
        coalesce(raw -> '$.run', raw -> '$.data', raw) as run
    from records
    where contains(raw, '"feedback_stats"')
),
stats as (
    select
        object,
        row,
        run ->> '$.run_type' = 'llm' as is_call,
        coalesce(run ->> '$.trace_id', run ->> '$.id') as trace_id,
        run ->> '$.start_time' as written_ts,
        case json_type(run, '$.feedback_stats') when 'OBJECT' then run -> '$.feedback_stats'
            when 'VARCHAR' then try_cast(run ->> '$.feedback_stats' as json) end as told,
        unnest(json_keys(told)) as name,
        json_extract(told, '$."' || name || '"') as stat
    from parsed
)
select
    object,
    row,
    row_number() over (partition by object, row order by name) - 1 as part,
    true as extra,
    case when is_call then 0 end as about_part,
    case when not is_call then trace_id end as trace_id,
    name,
    coalesce(stat ->> '$.avg', json_keys(stat, '$.values')[1]) as written_value,
    'feedback_stats' as source,
    stat ->> '$.comments[0]' as comment,
    written_ts
from stats
where stat ->> '$.n' is distinct from '0'

-- name: interactions
-- Interactions of runs of LangSmith.
select * from provider_calls('langsmith')
