-- What records have beside the keys that their format reads: columns under other names, keys that nothing reads, and columns that
-- the source's `fields` names. A record whose keys the format reads all is not looked into.
-- needs: batch, beside_of(), records
-- parameters: $fielded, $form, $looks, $read, $without
-- makes: temp table beside (object, row, named, found, unread, clashes)
create or replace temp table beside as
with looked as (
    select
        records.object,
        records.row,
        json_transform(
            beside_of(
                case
                    when list_contains($fielded, batch.source) then records.raw
                    else cast(json_merge_patch(records.raw, $without) as varchar)
                end,
                batch.source, $form
            ),
            '{
                "named": {"user": "VARCHAR", "session": "VARCHAR", "time": "VARCHAR", "id": "VARCHAR", "model": "VARCHAR",
                          "provider": "VARCHAR", "latency": "DOUBLE", "ttft": "DOUBLE", "cost": "DOUBLE", "prompt_tokens": "BIGINT",
                          "completion_tokens": "BIGINT", "status": "VARCHAR", "feedback": "VARCHAR",
                          "workload": "VARCHAR"},
                "found": {"user": "VARCHAR", "session": "VARCHAR", "time": "VARCHAR", "id": "VARCHAR", "trace": "VARCHAR",
                          "model": "VARCHAR", "provider": "VARCHAR", "latency": "DOUBLE", "ttft": "DOUBLE", "cost": "DOUBLE",
                          "prompt_tokens": "BIGINT", "completion_tokens": "BIGINT", "cached_tokens": "BIGINT",
                          "reasoning_tokens": "BIGINT", "status": "VARCHAR", "cache_hit": "BOOLEAN", "feedback": "VARCHAR",
                          "feedback_name": "VARCHAR", "foreign_cost": "BOOLEAN"},
                "unread": ["VARCHAR"], "clashes": ["VARCHAR"]
            }'
        ) as told
    from records
    inner join batch using (object)
    where $looks and (
        list_contains($fielded, batch.source) or not list_has_all($read, try(json_keys(records.raw)))
        or contains(records.raw, '"metadata"') and not coalesce(
            list_has_all(
                $read, [concat('request.metadata.', key) for key in nullif(try(json_keys(records.raw, '$.request.metadata')), [])]
            ),
            false
        )
    )
)

select object, row, told.named as named, told.found as found, told.unread as unread, told.clashes as clashes
from looked
