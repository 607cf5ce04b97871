-- name: batch
-- Objects of the batch. fallback_ts: the time of records without one (the day in the object's key, else the object's own time).
create or replace temp table batch (
    object integer, source varchar, uri varchar, workloads map(varchar, varchar), fallback_ts timestamptz
)

-- name: quarantined
-- Records that became no row, with their first bytes. Row 0 is the object as a whole.
create or replace temp table quarantined (
    object integer, row bigint, error_code varchar, message varchar, raw blob
)

-- name: skipped
-- Complete records that are not interactions (an HTTP span, a line that a later one repeats): read, and dropped.
create or replace temp table skipped (object integer, row bigint, workload varchar, rule varchar)

-- name: pair_sides
-- Records that are one side of a request-response pair; side is null where a record is neither. form: their format.
create or replace temp table pair_sides (
    form varchar, object integer, row bigint, side varchar, custom_id varchar, raw varchar
)

-- name: span_sides
-- OTLP spans without content and log records with the content of a span. span_id: trace and span; moment: nanoseconds.
create or replace temp table span_sides (
    object integer, row bigint, place integer, side varchar, span_id varchar, moment bigint, service varchar, item varchar
)

-- name: staged
-- Interactions of one batch, before repeated and erased rows are removed. A row with error_code moves to `quarantined` when its
-- part of the batch is complete.
create or replace temp table staged (
    object integer, row bigint, part integer, error_code varchar, message varchar,
    workload varchar, dt date, interaction_id varchar, request_id varchar, alias_id varchar, trace_id varchar, choice_index integer, ts timestamptz, source varchar, source_format varchar, source_uri varchar,
    source_row bigint, client varchar, session_id varchar, user_hash varchar, model varchar, provider varchar,
    served_model_digest varchar, messages varchar, tools varchar, params varchar, completion varchar,
    reasoning varchar, prompt_token_ids integer[], completion_token_ids integer[], finish_reason varchar,
    error varchar, cache_hit boolean, prompt_tokens bigint, completion_tokens bigint, cached_tokens bigint,
    reasoning_tokens bigint, latency_ms double, ttft_ms double, cost double, status varchar, content_sha256 varchar,
    workload_name varchar, release varchar, queue_ms double, drafts bigint, draft_tokens bigint, accepted_tokens bigint
)

-- name: staged_feedback
-- Feedback of one batch, ready for the table.
create or replace temp table staged_feedback (
    object integer, row bigint, part integer, extra boolean, copied boolean, workload varchar, dt date, interaction_id varchar,
    request_id varchar, trace_id varchar, session_id varchar, voter_hash varchar, name varchar, value double, label varchar,
    source varchar, comment varchar, answer_id varchar, ts timestamptz, source_uri varchar, source_row bigint
)

-- name: no_interactions
-- The columns that a format's section `interactions` may fill. written_ts: the time as the log has it; part: numbers the rows of one
-- record; user_hash: of a record whose producer hashed the user, with the key of this lake.
create or replace temp table no_interactions (
    object integer, row bigint, part integer, format varchar,
    record_digest varchar, request_id varchar, alias_id varchar, trace_id varchar, choice_index integer, written_ts varchar, workload_name varchar,
    client varchar, session_id varchar, user_id varchar, user_hash varchar, model varchar, provider varchar, served_model_digest varchar,
    messages varchar, tools varchar, params varchar, completion varchar, reasoning varchar,
    prompt_token_ids integer[], completion_token_ids integer[], finish_reason varchar, error varchar,
    cache_hit boolean, prompt_tokens bigint, completion_tokens bigint, cached_tokens bigint, reasoning_tokens bigint,
    latency_ms double, ttft_ms double, cost double, status varchar, release varchar, queue_ms double, drafts bigint,
    draft_tokens bigint, accepted_tokens bigint,
    error_code varchar, message varchar
)

-- name: no_feedback
-- The columns that a format's section `feedback` may fill. about_part: the part of the same record that the feedback is about.
create or replace temp table no_feedback (
    object integer, row bigint, part integer, extra boolean, about_part integer,
    request_id varchar, trace_id varchar, session_id varchar, user_id varchar, interaction_id varchar, workload_name varchar,
    name varchar, written_value varchar, label varchar, source varchar, comment varchar, answer_id varchar, written_ts varchar
)

-- name: unread_keys
-- Keys of the batch's records that nothing reads (kind unread; other: the field that would read them), and names of one column
-- that contradict each other (kind clash; path: the column and the name that is read, other: the name that is not).
create or replace temp table unread_keys (object integer, kind varchar, path varchar, other varchar, records bigint)

-- name: further_parts
-- Number of choices, turns and spans beyond the first of their record, by object.
with parts as (
    select object from staged where part > 0
    union all
    select object from staged_feedback where part > 0 and not extra and not copied
)
select object, count(*)
from parts
group by object

-- name: delete_objects
-- Deletes the rows of some objects from a batch table. The table is a name in our code, never input.
-- placeholders: table
delete from {table}
where list_contains($objects, object)

-- name: insert
-- Inserts Arrow rows into a batch table. The table is a name in our code, never input.
-- placeholders: table
insert into {table} by name select * from arriving

-- name: counts
-- Outcomes of the batch's records by day. Quarantined and skipped records count under their object's day; `attached` is
-- feedback that came inside an interaction's record.
with outcomes as (
    select dt as day, 'kept' as outcome
    from staged
    anti join (select object, row, part from row_decisions where fresh and not kept) as left_out using (object, row, part)
    union all
    select dt as day, case rule when 'erased' then 'erased' else 'repeated' end as outcome
    from row_decisions
    where fresh and not kept
    union all
    select cast(batch.fallback_ts as date) as day, 'skipped' as outcome
    from skipped
    inner join batch using (object)
    union all
    select cast(batch.fallback_ts as date) as day, 'quarantined' as outcome
    from quarantined
    inner join batch using (object)
    union all
    select
        dt as day, case when erased_feedback.object is null then if(extra, 'attached', 'feedback') when not extra then 'erased' end as outcome
    from staged_feedback
    left join erased_feedback using (object, row, part)
    where not copied
    union all
    select cast(fallback_ts as date) as day, 'object' as outcome
    from batch
)
select
    day,
    count(*) filter (outcome = 'object') as objects,
    count(*) filter (outcome = 'kept') as kept,
    count(*) filter (outcome = 'repeated') as repeated,
    count(*) filter (outcome = 'erased') as erased,
    count(*) filter (outcome = 'skipped') as skipped,
    count(*) filter (outcome = 'quarantined') as quarantined,
    count(*) filter (outcome = 'feedback') as feedback,
    count(*) filter (outcome = 'attached') as attached
from outcomes
group by day
order by day

-- name: object_days
-- Number of records of each object, and the days they belong to.
with found as (
    select object, row, dt from staged
    union all
    select object, row, dt from staged_feedback
    union all
    select object, row, null from quarantined
    union all
    select object, row, null from skipped
)
select
    batch.uri,
    count(distinct found.row) as records,
    coalesce(list(distinct found.dt order by found.dt) filter (found.dt is not null), []) as days
from batch
left join found using (object)
group by batch.uri

-- name: object_unread_keys
-- Of each object, the keys that nothing reads and the names that contradict each other, most records first.
select batch.uri, kind, path, max(other) as other, sum(records) as records
from unread_keys
inner join batch using (object)
group by batch.uri, kind, path
qualify row_number() over (partition by batch.uri, kind order by sum(records) desc, path) <= 60
order by batch.uri, kind, records desc, path

-- name: quarantined_objects
-- Objects that are in quarantine as a whole, by code and reason. A message is "reason; remedy".
select
    regexp_replace(split_part(message, ';', 1), ' [0-9]+', ' #', 'g') as reason, count(*) as objects, min(batch.uri) as first_uri,
    concat(error_code, ': ', arg_min(message, batch.uri)) as message
from quarantined
inner join batch using (object)
where quarantined.row = 0
group by error_code, reason
order by first_uri

-- name: repeated_ids
-- Records of the batch that are dropped because an earlier one with their id has other contents, by source.
select batch.source, count(*) as records
from row_decisions
inner join batch using (object)
where fresh and not kept and rule = 'repeated_id'
group by batch.source

-- name: rows_without_user
-- Sources none of whose rows in the batch has a user, and the number of rows.
select source, count(*) as rows
from staged
group by source
having count(user_hash) = 0

-- name: workload_names
-- Rows that the batch adds to a workload, by their source and the workload that their records name.
select source, workload_name, count(*) as rows
from new_interactions
where workload = $workload and workload_name <> ''
group by source, workload_name
