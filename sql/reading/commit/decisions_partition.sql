-- A partition of `decisions` after this batch. Decisions that name a copy which is replaced name its replacement.
-- needs: decisions, new_decisions, reread, row_decisions
-- parameters: $stage, $workload
-- makes: rows (decisions.*)
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
