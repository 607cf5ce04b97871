-- One partition of `decisions` as it will be: what was there and stays, and what the batch brings. Where the copy that had
-- stayed gives way to another, those that had left for it name the new one.
with beaten as (
    select workload, interaction_id, kept_uri, kept_row, kept_content
    from judged
    where not fresh and not kept
)

select
    decisions.* replace (
        case
            when beaten.kept_uri is null or decisions.rule = 'erased' then decisions.detail
            else to_json(struct_pack(
                uri := decisions.detail ->> '$.uri', row := cast(decisions.detail ->> '$.row' as bigint),
                content_sha256 := decisions.detail ->> '$.content_sha256', kept_uri := beaten.kept_uri,
                kept_row := beaten.kept_row,
                same_content := decisions.detail ->> '$.content_sha256' = beaten.kept_content
            ))
        end as detail,
        case
            when beaten.kept_uri is null or decisions.rule = 'erased' then decisions.rule
            when decisions.detail ->> '$.content_sha256' = beaten.kept_content then 'repeated_record'
            else 'repeated_id'
        end as rule
    )
from decisions
left join beaten using (workload, interaction_id)
anti join reread on decisions.detail ->> '$.uri' = reread.uri
where workload = $workload and stage = $stage
union all by name
select *
from new_decisions
where workload = $workload and stage = $stage
