-- name: read_before
-- Waiting objects that already left rows in a table: read in another state, or by a run that was killed.
create or replace temp table read_before as
select source_uri as uri from interactions semi join waiting on interactions.source_uri = waiting.uri
union
select source_uri as uri from feedback semi join waiting on feedback.source_uri = waiting.uri
union
select source_uri as uri from quarantine semi join waiting on quarantine.source_uri = waiting.uri
union
select detail ->> '$.uri' as uri
from decisions
semi join waiting on decisions.detail ->> '$.uri' = waiting.uri
where stage = 'ingest'

-- name: reread
-- Objects of the batch whose earlier rows are replaced.
create or replace temp table reread as
select uri from batch
semi join read_before using (uri)

-- name: loose_ids
-- Records whose id does not identify them: their source has three records or more of other contents with it, or two where the
-- id is weak. own_id: what identifies them, by content and time. Records that were dropped before count too, so that the order of
-- reading does not matter; what the objects of the batch held before does not.
create or replace temp table loose_ids as
with named as (
    select distinct source, workload, request_id, choice_index, interaction_id, is_weak_id(request_id) as weak
    from staged
    where request_id is not null
        -- of a served request: ids of data sets have a digest beside them
        and interaction_id = sha256(concat_ws(chr(31), source, 'id:' || request_id, choice_index))
),
contents as (
    select workload, interaction_id, content_sha256, weak
    from staged
    inner join named using (workload, interaction_id)
    union
    select workload, named.interaction_id, interactions.content_sha256, weak
    from interactions
    inner join named using (source, workload, request_id, choice_index)
    anti join reread on interactions.source_uri = reread.uri
    union
    select workload, interaction_id, decisions.detail ->> '$.content_sha256' as content_sha256, weak
    from decisions
    inner join named using (workload, interaction_id)
    anti join reread on decisions.detail ->> '$.uri' = reread.uri
    where decisions.stage = 'ingest'
),
loose as (
    select workload, interaction_id
    from contents
    group by workload, interaction_id
    having count(distinct content_sha256) >= if(bool_or(weak), 2, 3)
)
select
    object, row, part, source, workload, request_id, interaction_id,
    sha256(concat_ws(chr(31), interaction_id, content_sha256, epoch_us(ts))) as own_id
from staged
semi join loose using (workload, interaction_id)

-- name: loose_records
-- Numbers of ids that do not identify a record, and of the batch's records that have them, by source.
select source, count(distinct request_id) as ids, count(*) as records
from loose_ids
group by source

-- name: read_with_loose_ids
-- Objects outside the batch whose records were read while their id still seemed to identify them.
select source_uri as uri
from interactions
semi join loose_ids using (workload, interaction_id)
anti join batch on interactions.source_uri = batch.uri
union
select decisions.detail ->> '$.uri' as uri
from decisions
semi join loose_ids using (workload, interaction_id)
anti join batch on decisions.detail ->> '$.uri' = batch.uri
where decisions.stage = 'ingest'

-- name: tell_feedback_apart
-- Gives feedback inside a record whose id does not identify it the record's own id.
update staged_feedback
set interaction_id = own_id
from loose_ids
where staged_feedback.object = loose_ids.object and staged_feedback.row = loose_ids.row
    and staged_feedback.interaction_id = loose_ids.interaction_id

-- name: tell_apart
-- Gives records whose id does not identify them an id of their own.
update staged
set interaction_id = own_id
from loose_ids
where staged.object = loose_ids.object and staged.row = loose_ids.row and staged.part = loose_ids.part

-- name: known_ids
-- Ids of the batch that the table `interactions` already has. Only its id column is read.
create or replace temp table known_ids as
select distinct workload, interaction_id
from interactions
semi join staged using (workload, interaction_id)

-- name: emptied_before
-- Interactions of the batch that retention has emptied, with what such a row keeps.
create or replace temp table emptied_before as
select workload, dt, interaction_id, content_sha256, params, prompt_token_ids, completion_token_ids, emptied
from interactions
semi join known_ids using (workload, interaction_id)
where emptied is not null

-- name: decisions_added
-- New decisions for partitions that lose no row.
select *
from new_decisions
anti join rewritten using (workload, stage)

-- name: decisions_partition
-- A partition of `decisions` after this batch. Decisions that name a copy which is replaced name its replacement.
with replaced as (
    select workload, interaction_id, kept_uri, kept_row, kept_content
    from row_decisions
    where not fresh and not kept
)
select
    decisions.* replace (
        case
            when replaced.kept_uri is null or decisions.rule = 'erased' then decisions.detail
            else to_json(struct_pack(
                uri := decisions.detail ->> '$.uri', row := cast(decisions.detail ->> '$.row' as bigint),
                content_sha256 := decisions.detail ->> '$.content_sha256', kept_uri := replaced.kept_uri,
                kept_row := replaced.kept_row,
                same_content := decisions.detail ->> '$.content_sha256' = replaced.kept_content
            ))
        end as detail,
        case
            when replaced.kept_uri is null or decisions.rule = 'erased' then decisions.rule
            when decisions.detail ->> '$.content_sha256' = replaced.kept_content then 'repeated_record'
            else 'repeated_id'
        end as rule
    )
from decisions
left join replaced using (workload, interaction_id)
anti join reread on decisions.detail ->> '$.uri' = reread.uri
where workload = $workload and stage = $stage
union all by name
select *
from new_decisions
where workload = $workload and stage = $stage

-- name: decisions_rewritten
-- Partitions of `decisions` that lose rows (objects read again) or whose rows name a copy that is replaced.
create or replace temp table rewritten as
select distinct workload, stage
from decisions
semi join reread on decisions.detail ->> '$.uri' = reread.uri
where stage = 'ingest'
union
select distinct workload, 'ingest' as stage
from row_decisions
where not fresh and not kept

-- name: feedback_added
-- New feedback for partitions that lose no row.
select *
from new_feedback
anti join rewritten using (workload, dt)

-- name: feedback_partition
-- A partition of `feedback` after this batch, without what was read earlier about records that are erased now.
select *
from feedback
anti join reread on feedback.source_uri = reread.uri
where workload = $workload and dt = $dt
    and not coalesce(
        interaction_id in (select id from newly_erased_ids) or given_id in (select id from newly_erased_ids)
        or request_id in (select id from newly_erased_ids) or trace_id in (select id from newly_erased_ids)
        or session_id in (select id from newly_erased_ids), false
    )
union all by name
select *
from new_feedback
where workload = $workload and dt = $dt

-- name: feedback_rewritten
-- Partitions of `feedback` that lose rows: objects read again, and what was read earlier about records that are erased now.
create or replace temp table rewritten as
select distinct workload, dt
from feedback
semi join reread on feedback.source_uri = reread.uri
union
select distinct workload, dt
from feedback
where coalesce(
        interaction_id in (select id from newly_erased_ids) or given_id in (select id from newly_erased_ids)
        or request_id in (select id from newly_erased_ids) or trace_id in (select id from newly_erased_ids)
        or session_id in (select id from newly_erased_ids), false
    )

-- name: interactions_added
-- New interactions for partitions that lose no row.
select *
from new_interactions
anti join rewritten using (workload, dt)

-- name: interactions_partition
-- A partition of `interactions` after this batch.
select interactions.*
from interactions
anti join reread on interactions.source_uri = reread.uri
anti join (select workload, interaction_id from row_decisions where not fresh and not kept) as replaced
    using (workload, interaction_id)
where workload = $workload and dt = $dt
union all by name
select *
from new_interactions
where workload = $workload and dt = $dt

-- name: interactions_rewritten
-- Partitions of `interactions` that lose rows: objects read again, and rows that a new copy replaces.
create or replace temp table rewritten as
select distinct workload, dt
from interactions
semi join reread on interactions.source_uri = reread.uri
union
select distinct workload, dt
from row_decisions
where not fresh and not kept

-- name: new_decisions
-- The batch's rows for `decisions`. detail names the copy that was dropped and the copy that stays; of an erased record only its
-- place is kept. Skipped records have one row per object and rule, with their number.
create or replace temp view new_decisions as
select
    workload, 'ingest' as stage, null as version, dt, case when rule <> 'erased' then interaction_id end as interaction_id, rule,
    false as kept, to_json(struct_pack(uri := source_uri, row := source_row, content_sha256 := content_sha256, kept_uri := kept_uri,
                        kept_row := kept_row, same_content := kept_content = content_sha256)) as detail,
    case when rule in ('repeated_record', 'repeated_id') then interaction_id end as kept_id
from row_decisions
where not kept
union all by name
select
    skipped.workload, 'ingest' as stage, null as version, cast(any_value(batch.fallback_ts) as date) as dt,
    null as interaction_id, skipped.rule, false as kept,
    to_json(struct_pack(uri := batch.uri, records := count(*))) as detail, null as kept_id
from skipped
inner join batch using (object)
group by skipped.workload, batch.uri, skipped.rule

-- name: new_feedback
-- The batch's rows for `feedback`. resources/reading/ties.py ties them to interactions at the end of the run.
create or replace temp view new_feedback as
select * exclude (object, row, part, extra, copied), cast(null as varchar) as given_id, cast(null as varchar) as tie
from staged_feedback
anti join erased_feedback using (object, row, part)

-- name: new_interactions
-- The batch's rows for `interactions`. A row that retention has emptied stays emptied when its object is read again.
create or replace temp view new_interactions as
select
    staged.* exclude (object, row, part, error_code, message) replace (
        if(emptied is null, messages, null) as messages,
        if(emptied is null, tools, null) as tools,
        if(emptied is null, completion, null) as completion,
        if(emptied is null, reasoning, null) as reasoning,
        if(emptied is null, error, null) as error,
        if(emptied is null, staged.params, emptied_before.params) as params,
        if(emptied is null, staged.prompt_token_ids, emptied_before.prompt_token_ids) as prompt_token_ids,
        if(emptied is null, staged.completion_token_ids, emptied_before.completion_token_ids) as completion_token_ids
    ),
    emptied_before.emptied
from staged
anti join (select object, row, part from row_decisions where fresh and not kept) as left_out using (object, row, part)
left join emptied_before using (workload, dt, interaction_id, content_sha256)

-- name: new_quarantine
-- The batch's rows for `quarantine`.
create or replace temp table new_quarantine as
select
    $workload as workload, batch.source, batch.uri as source_uri, quarantined.row as source_row,
    quarantined.error_code, quarantined.message, quarantined.raw
from quarantined
inner join batch using (object)

-- name: quarantine_added
-- New quarantine rows for partitions that lose no row.
select *
from new_quarantine
anti join rewritten using (workload)

-- name: quarantine_partition
-- A partition of `quarantine` after this batch.
select *
from quarantine
anti join reread on quarantine.source_uri = reread.uri
where workload = $workload
union all by name
select *
from new_quarantine
where workload = $workload

-- name: quarantine_rewritten
-- Partitions of `quarantine` that lose rows: objects read again.
create or replace temp table rewritten as
select distinct workload
from quarantine
semi join reread on quarantine.source_uri = reread.uri

-- name: row_decisions
-- Decisions on staged rows whose id occurs more than once (in the batch or the table) and on erased rows. Of copies
-- with a whole answer, else of all, the earliest stays, then the first by uri and row, so the order of reading does not matter. Staged rows that are not listed are
-- kept.
create or replace temp table row_decisions as
with hashed as (
    select
        object, row, part, workload, user_hash,
        sha256(concat($user_hash_key, chr(31), interaction_id)) as interaction,
        case when session_id is not null then sha256(concat($user_hash_key, chr(31), session_id)) end as session
    from staged
    semi join (select distinct workload from erased_hashes) as affected using (workload)
),
erased as (
    select object, row, part from hashed
    semi join erased_hashes on erased_hashes.workload = hashed.workload and kind = 'interaction' and sha256 = interaction
    union
    select object, row, part from hashed
    semi join erased_hashes on erased_hashes.workload = hashed.workload and kind = 'user' and sha256 = user_hash
    union
    select object, row, part from hashed
    semi join erased_hashes on erased_hashes.workload = hashed.workload and kind = 'session' and sha256 = session
),
shared as (
    select workload, interaction_id
    from staged
    group by workload, interaction_id
    having count(*) > 1
    union
    select workload, interaction_id from known_ids
),
candidates as (
    select
        object, row, part, workload, dt, interaction_id, ts, source_uri, source_row, part as place_in_row,
        content_sha256, true as fresh, status, finish_reason
    from staged
    semi join shared using (workload, interaction_id)
    anti join erased using (object, row, part)
    union all
    select
        null as object, null as row, null as part, workload, dt, interaction_id, ts, source_uri, source_row,
        choice_index as place_in_row, content_sha256, false as fresh, status, finish_reason
    from interactions
    semi join known_ids using (workload, interaction_id)
    anti join reread on interactions.source_uri = reread.uri
),
ranked as (
    select
        * exclude (status, finish_reason),
        row_number() over same_id as place,
        first_value(source_uri) over same_id as kept_uri,
        first_value(source_row) over same_id as kept_row,
        first_value(content_sha256) over same_id as kept_content
    from candidates
    window same_id as (
        partition by workload, interaction_id
        order by status is distinct from 'failure' and coalesce(finish_reason, 'stop') in ('stop', 'tool_calls') desc,
            ts, source_uri, source_row, place_in_row
    )
)
select
    object, row, part, workload, dt, interaction_id, source_uri, source_row, fresh, place = 1 as kept,
    -- an id occurs twice: a repeated record, or another record with this id
    case when kept_content = content_sha256 then 'repeated_record' else 'repeated_id' end as rule, kept_uri, kept_row, kept_content, content_sha256
from ranked
union all
select
    object, row, part, workload, dt, interaction_id, source_uri, source_row, true as fresh, false as kept,
    'erased' as rule, null as kept_uri, null as kept_row, null as kept_content, null as content_sha256
from staged
semi join erased using (object, row, part)
