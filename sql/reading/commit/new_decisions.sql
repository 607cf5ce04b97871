-- The batch's rows for `decisions`. detail names the copy that was dropped and the copy that stays; of an erased record only its
-- place is kept. Skipped records have one row per object and rule, with their number.
-- needs: batch, row_decisions, skipped
-- makes: temp view new_decisions (workload, stage, version, dt, interaction_id, rule, kept, detail, kept_id)
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
