-- What the batch brings to `decisions`. detail says which copy left and which stayed. Records that are no interactions
-- have one row per object and rule, with their number.
create or replace temp view new_decisions as
select
    workload, 'ingest' as stage, null as version, dt, interaction_id, rule, false as kept,
    to_json(struct_pack(uri := source_uri, row := source_row, content_sha256 := content_sha256, kept_uri := kept_uri,
                        kept_row := kept_row, same_content := kept_content = content_sha256)) as detail,
    case when rule in ('repeated_record', 'repeated_id') then interaction_id end as kept_id
from judged
where not kept
union all by name
select
    skipped.workload, 'ingest' as stage, null as version, cast(any_value(batch.fallback_ts) as date) as dt,
    null as interaction_id, skipped.rule, false as kept,
    to_json(struct_pack(uri := batch.uri, records := count(*))) as detail, null as kept_id
from skipped
inner join batch using (object)
group by skipped.workload, batch.uri, skipped.rule
