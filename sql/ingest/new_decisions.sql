-- What the batch brings to `decisions`. detail says which copy left and which stayed.
create or replace temp view new_decisions as
select
    workload, 'ingest' as stage, null as version, dt, interaction_id, rule, false as kept,
    to_json(struct_pack(uri := source_uri, row := source_row, kept_uri := kept_uri, kept_row := kept_row,
                        same_content := same_content)) as detail,
    case when rule = 'repeated_record' then interaction_id end as kept_id
from judged
where not kept
