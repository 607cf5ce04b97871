-- name: interactions
-- Lines of vLLM's log that are neither requests nor responses: counted, or quarantined where one breaks off.
with parsed as (
    select object, row, raw ->> '$.vllm' as kind
    from records
)
select
    object,
    row,
    0 as part,
    'vllm_lines' as format,
    case when kind = 'broken' then 'truncated_log' else 'skipped' end as error_code,
    case
        when kind = 'broken' then 'the line of a request or response breaks off; write the log to a file without limit of the line length'
        else concat('vllm_', kind)
    end as message
from parsed
