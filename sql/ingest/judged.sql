-- What becomes of each staged row, and of rows already in the table that show up again: of the rows with one id the
-- earliest stays, then the one that comes first by uri and row, so that the order of reading does not matter.
create or replace temp table judged as
with erased as (
    select staged.workload, staged.interaction_id, staged.source_uri, staged.source_row, staged.choice_index
    from staged
    where exists (
        select 1
        from erasures
        where erasures.workload = staged.workload
            and (
                (erasures.kind = 'interaction' and erasures.sha256 = staged.interaction_id)
                or (erasures.kind = 'content' and erasures.sha256 = staged.content_sha256)
                or (erasures.kind = 'user' and erasures.sha256 = staged.user_hash)
                or (erasures.kind = 'session' and erasures.sha256 = sha256(staged.session_id))
            )
    )
),

candidates as (
    select workload, dt, interaction_id, ts, source_uri, source_row, part as place_in_row, content_sha256, true as fresh
    from staged
    anti join erased using (workload, interaction_id, source_uri, source_row, choice_index)
    union all
    select
        workload, dt, interaction_id, ts, source_uri, source_row, choice_index as place_in_row, content_sha256,
        false as fresh
    from interactions
    semi join staged using (workload, interaction_id)
    anti join reread on interactions.source_uri = reread.uri
),

ranked as (
    select
        *,
        row_number() over same_id as place,
        first_value(source_uri) over same_id as kept_uri,
        first_value(source_row) over same_id as kept_row,
        first_value(content_sha256) over same_id as kept_content
    from candidates
    window same_id as (partition by workload, interaction_id order by ts, source_uri, source_row, place_in_row)
)

select
    workload, dt, interaction_id, source_uri, source_row, place_in_row, fresh, place = 1 as kept,
    'repeated_record' as rule, kept_uri, kept_row, kept_content = content_sha256 as same_content
from ranked
union all
select
    staged.workload, staged.dt, staged.interaction_id, staged.source_uri, staged.source_row,
    staged.part as place_in_row, true as fresh, false as kept, 'erased' as rule, null as kept_uri, null as kept_row,
    null as same_content
from staged
semi join erased using (workload, interaction_id, source_uri, source_row, choice_index)
