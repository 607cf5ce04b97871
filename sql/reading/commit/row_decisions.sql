-- Decisions on staged rows whose id occurs more than once (in the batch or the table) and on erased rows. Of copies
-- with a whole answer, else of all, the earliest stays, then the first by uri and row, so the order of reading does not matter. Staged rows that are not listed are
-- kept.
-- needs: erased_hashes, interactions, known_ids, reread, staged
-- parameters: $user_hash_key
-- makes: temp table row_decisions (object, row, part, workload, dt, interaction_id, source_uri, source_row, fresh, kept,
--     rule, kept_uri, kept_row, kept_content, content_sha256)
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
