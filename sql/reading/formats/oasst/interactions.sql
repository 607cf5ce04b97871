-- Interactions of OASST trees: one row per answer.
-- needs: oasst_answers(), records
-- makes: rows (object, row, part, format, request_id, trace_id, choice_index, written_ts, session_id, user_id, model,
--     messages, completion, finish_reason, status, error_code, message)
select
    records.object,
    records.row,
    coalesce(answers.part, 0) as part,
    'oasst' as format,
    node ->> '$.message_id' as request_id,
    raw ->> '$.message_tree_id' as trace_id,
    0 as choice_index,
    node ->> '$.created_date' as written_ts,
    raw ->> '$.message_tree_id' as session_id,
    node ->> '$.user_id' as user_id,
    node ->> '$.model_name' as model,
    to_json(path) as messages,
    json_object('role', 'assistant', 'content', node ->> '$.text') as completion,
    'stop' as finish_reason,
    'success' as status,
    case when answers.part is null then 'missing_field' end as error_code,
    case when answers.part is null then 'the tree holds no message of the assistant' end as message
from records
left join oasst_answers() as answers using (object, row)
