-- name: numbers_of
-- The numbers and booleans among the fields of a JSON object, as JSON text: parameters of sampling, without any text, and what of the
-- prompt is elsewhere: an erasure finds rows that go on from an erased response by it.
create or replace temp macro numbers_of(params) as (
    select nullif(cast(json_group_object(key, value) as varchar), '{}')
    from json_each(if(json_valid(params), params, '{}'))
    where key = 'context' or type in ('BIGINT', 'UBIGINT', 'DOUBLE', 'BOOLEAN', 'HUGEINT')
)

-- name: emptied
-- The interactions of a day, emptied of what was said: ids, times, counts and the numbers among the parameters stay. Token ids
-- and verifier data stay in rows that have nothing else to train on. Rows that were not cleaned yet keep everything.
with marked as (
    select
        interactions.*,
        emptied is null and cleaned_interactions.interaction_id is not null as goes,
        coalesce(interactions.status in ('tokens', 'prompt_only'), false) as is_all_there_is
    from interactions
    left join cleaned_interactions using (dt, interaction_id, content_sha256)
)
select
    * exclude (goes, is_all_there_is) replace (
        if(goes, null, messages) as messages,
        if(goes, null, tools) as tools,
        if(goes, null, completion) as completion,
        if(goes, null, reasoning) as reasoning,
        if(goes, null, error) as error,
        if(goes and not is_all_there_is, numbers_of(params), params) as params,
        if(goes and not is_all_there_is, null, prompt_token_ids) as prompt_token_ids,
        if(goes and not is_all_there_is, null, completion_token_ids) as completion_token_ids,
        if(
            goes,
            md5(to_json(
                {model: model, weights: served_model_digest, params: params, prompt: prompt_token_ids,
                answer: completion_token_ids, counted: [prompt_tokens, completion_tokens], reasoning: reasoning,
                finish: finish_reason, status: status}
            )::varchar),
            emptied
        ) as emptied
    )
from marked

-- name: uncommented
-- The feedback of a day without comments.
select * replace (cast(null as varchar) as comment)
from feedback

-- name: empty_days
-- Days with rows to empty: cleaned as they are, and not emptied yet.
select dt, count(*) as rows
from interactions
semi join cleaned_interactions using (dt, interaction_id, content_sha256)
where emptied is null
group by dt
order by dt

-- name: commented_days
-- Days of feedback with comments.
select dt, count(*) as rows
from feedback
where comment is not null
group by dt
order by dt

-- name: quarantine_emptied
-- A workload's quarantine, without the bytes of records of objects whose last day is before $first_day; and whether a record
-- loses them now. $since: the first day of what stays at all, or null.
with aged as (
    select quarantine.*, raw is not null and coalesce(
            list_max(objects.days) < $first_day and ($since::date is null or list_max(objects.days) >= $since::date), false
        ) as is_emptied
    from quarantine
    left join objects on objects.workload = quarantine.workload and objects.uri = quarantine.source_uri
    where quarantine.workload = $workload
)
select * replace (if(is_emptied, null, raw) as raw)
from aged

-- name: decisions_since
-- A workload's decisions of one stage from a day on.
select *
from decisions
where workload = $workload and stage = $stage and (dt is null or dt >= $first_day)

-- name: old_decisions
-- Numbers of a workload's decisions on records before a day, by stage.
select stage, count(*) as decisions
from decisions
where workload = $workload and dt < $first_day
group by stage

-- name: quarantine_since
-- A workload's quarantine without the records of objects that have no record from a day on, and the number of those left out.
select quarantine.*, coalesce(list_max(objects.days) < $first_day, false) as is_old
from quarantine
left join objects on objects.workload = quarantine.workload and objects.uri = quarantine.source_uri
where quarantine.workload = $workload

-- name: retired
-- Ids of the interactions of some days that `retired` does not have yet.
select
    workload, dt, interaction_id, request_id, alias_id, trace_id, session_id, user_hash, source, source_uri, source_row, ts,
    content_sha256, now() as removed_at
from interactions
anti join retired using (workload, interaction_id)

-- name: retired_source
-- Ids of the selected interactions that `retired` does not have yet, without the hash of their content.
select
    workload, dt, interaction_id, request_id, alias_id, trace_id, session_id, user_hash, source, source_uri, source_row, ts,
    null::varchar as content_sha256, now() as removed_at
from selected
anti join retired using (workload, interaction_id)

-- name: rows_with_text
-- Rows of some sources that still hold text, by table.
select 'interactions' as table_name, count(*) as rows
from interactions
where workload = $workload and list_contains($sources::varchar[], source)
union all
select 'feedback', count(*)
from feedback
where workload = $workload
    and source_uri in (
        select uri from objects where workload = $workload and list_contains($sources::varchar[], source)
    )
union all
select 'quarantine', count(*)
from quarantine
where workload = $workload and list_contains($sources::varchar[], source) and raw is not null
