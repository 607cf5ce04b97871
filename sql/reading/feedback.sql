-- name: stage_feedback
-- Feedback that passed the checks.
insert into staged_feedback by name
select
    object, row, part, extra, copied, workload, cast(ts as date) as dt, interaction_id, request_id, trace_id, session_id, voter_hash, name,
    value, label, source, comment, answer_id, ts, uri as source_uri, row as source_row
from checked_feedback
where error_code is null

-- name: quarantine_feedback
-- Feedback that failed a check. Feedback inside an interaction's record is left out: the record itself is fine.
insert into quarantined by name
select
    checked_feedback.object, checked_feedback.row, checked_feedback.error_code, checked_feedback.message,
    encode(lines.raw)[:4096] as raw
from checked_feedback
inner join lines using (object, row)
where checked_feedback.error_code is not null and not checked_feedback.extra and not checked_feedback.copied

-- name: checked_feedback
-- Feedback with its value as a number and its word as a label. A record without an id or without a value gets an error_code.
create or replace temp table checked_feedback as
with valued as (
    select
        extracted_feedback.* exclude (about_part) replace (
            coalesce(extracted_feedback.interaction_id, staged.interaction_id) as interaction_id
        ),
        case when user_id <> '' then sha256(concat($user_hash_key, chr(31), user_name(user_id))) end as voter_hash,
        batch.uri,
        coalesce(staged.workload, batch.workloads[extracted_feedback.workload_name], case when extra then $workload end)
            as own_workload,
        coalesce(moment(extracted_feedback.written_ts), staged.ts, batch.fallback_ts) as ts,
        time_problem(extracted_feedback.written_ts) as bad_time,
        coalesce(
            thumb_of(written_value),
            case when isfinite(try_cast(written_value as double)) then try_cast(written_value as double) end
        ) as value
    from extracted_feedback
    inner join batch using (object)
    left join staged
        on staged.object = extracted_feedback.object
        and staged.row = extracted_feedback.row
        and staged.part = extracted_feedback.about_part
        and staged.error_code is null
),
-- feedback that names none of the recipe's workloads is kept for each of them: its ids decide
spread as (
    select
        * exclude (own_workload),
        unnest(case when own_workload is null then $workloads else [own_workload] end) as workload,
        unnest(range(case when own_workload is null then len($workloads) else 1 end)) > 0 as copied
    from valued
)
select
    * exclude (label),
    coalesce(
        label,
        case when not isfinite(coalesce(try_cast(written_value as double), 'nan'::double)) then nullif(trim(written_value), '') end,
        -- neither a value nor words: a vote is taken back
        case when value is null and nullif(comment, '') is null then 'none' end
    ) as label,
    case
        when coalesce(request_id, trace_id, session_id, interaction_id) is null then 'missing_field'
        when value is null and nullif(coalesce(label, written_value), '') is null and comment <> '' then 'missing_field'
        when label = 'corrected' and nullif(trim(comment), '') is null then 'missing_field'
        when bad_time is not null then 'wrong_type'
    end as error_code,
    case
        when coalesce(request_id, trace_id, session_id, interaction_id) is null
            then 'the feedback names no response, trace or session'
        when value is null and nullif(coalesce(label, written_value), '') is null and comment <> ''
            then 'the feedback has neither value nor label'
        when label = 'corrected' and nullif(trim(comment), '') is null then 'the edit has no corrected text'
        else bad_time
    end as message
from spread

-- name: without_feedback
-- The feedback select of formats that have none.
select * from no_feedback
