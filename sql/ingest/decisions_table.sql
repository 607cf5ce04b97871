-- The decisions of ingest as they will be, for one workload. detail says which copy left and which stayed.
select *
from decisions
anti join reread on decisions.detail ->> '$.uri' = reread.uri
where stage = 'ingest' and workload = $workload
union all by name
select
    workload, 'ingest' as stage, null as version, dt, interaction_id, rule, false as kept,
    to_json(struct_pack(uri := source_uri, row := source_row, kept_uri := kept_uri, kept_row := kept_row,
                        same_content := same_content)) as detail,
    case when rule = 'repeated_record' then interaction_id end as kept_id
from judged
where not kept and workload = $workload
order by dt, interaction_id, detail
