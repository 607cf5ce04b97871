-- name: interactions
-- Pre-tokenized rows: status `tokens`, token ids and labels.
with parsed as (
    select
        object,
        row,
        record_digest(raw) as digest,
        json_transform(raw, '{
            "id": "VARCHAR", "session_id": "VARCHAR", "timestamp": "VARCHAR", "workload_id": "VARCHAR",
            "model": "VARCHAR", "token_ids": ["BIGINT"], "input_ids": ["BIGINT"], "labels": ["BIGINT"],
            "attention_mask": ["BIGINT"], "loss_mask": ["BIGINT"], "completion_mask": ["BIGINT"],
            "assistant_masks": ["BIGINT"], "workload": "VARCHAR", "prompt": ["BIGINT"], "prompt_token_ids": ["BIGINT"],
            "answer": ["BIGINT"], "completion": ["BIGINT"], "completion_token_ids": ["BIGINT"]
        }') as record,
        -- a number that is not an integer would be rounded above
        list_distinct(list_concat(
            json_type(raw, '$.token_ids[*]'), json_type(raw, '$.input_ids[*]'), json_type(raw, '$.labels[*]'),
            json_type(raw, '$.prompt[*]'), json_type(raw, '$.prompt_token_ids[*]'), json_type(raw, '$.answer[*]'),
            json_type(raw, '$.completion[*]'), json_type(raw, '$.completion_token_ids[*]')
        )) as kinds
    from records
),
sided as (
    select
        *,
        coalesce(record.prompt_token_ids, record.prompt) as prompt_ids,
        coalesce(record.completion_token_ids, record.answer, record.completion) as answered
    from parsed
),
streams as (
    select
        object, row, digest, record,
        coalesce(record.token_ids, record.input_ids, list_concat(prompt_ids, answered)) as written_ids,
        coalesce(
            record.labels,
            case when record.token_ids is null and record.input_ids is null
                then list_concat(list_transform(prompt_ids, lambda each: -100::bigint), answered) end
        ) as written_labels,
        coalesce(record.loss_mask, record.completion_mask, record.assistant_masks) as mask,
        record.attention_mask as attention,
        coalesce(list_position(attention, 1), 1) as first_seen,
        case when attention is null then len(written_ids) else
            len(attention) - coalesce(list_position(list_reverse(attention), 1), len(attention) + 1) + 1 end as last_seen,
        len(list_filter(kinds, lambda kind: kind not in ('UBIGINT', 'BIGINT'))) > 0 as odd_numbers
    from sided
),
-- padding is left out; without labels the mask says what is learnt; without a mask every token is learnt
seen as (
    select
        *,
        written_ids[first_seen:last_seen] as ids,
        coalesce(
            written_labels,
            case when mask is not null then list_transform(
                list_zip(written_ids, mask), lambda pair: case when pair[2] = 1 then pair[1] else -100 end
            ) end,
            written_ids
        )[first_seen:last_seen] as labels
    from streams
),
marked as (
    select
        *,
        list_filter(
            range(1, len(ids) + 1), lambda place: labels[place] is null or labels[place] not in (-100, ids[place])
        ) as strange,
        coalesce(list_position(list_transform(labels, lambda label: label <> -100), true), len(ids) + 1) as first_learnt
    from seen
),
holes as (
    select
        *,
        list_filter(
            range(first_learnt, len(ids) + 1),
            lambda place: labels[place] = -100 and labels[place - 1] <> -100
        ) as begins,
        list_filter(
            range(first_learnt, len(ids) + 1),
            lambda place: labels[place] = -100 and coalesce(labels[place + 1], 0) <> -100
        ) as ends
    from marked
)
select
    object,
    row,
    0 as part,
    'tokens' as format,
    digest as record_digest, record.id as request_id, record.id as trace_id,
    0 as choice_index,
    record.timestamp as written_ts,
    coalesce(record.workload_id, record.workload) as workload_name,
    coalesce(record.session_id, record.id || ':' || digest[:16]) as session_id,
    record.model as model,
    '[]' as messages,
    case when len(begins) > 0 then to_json(struct_pack("masked" := list_transform(
        list_zip(begins, ends), lambda span: [span[1] - first_learnt, span[2] - first_learnt + 1]
    ))) end as params,
    try_cast(ids[:first_learnt - 1] as integer[]) as prompt_token_ids,
    try_cast(ids[first_learnt:] as integer[]) as completion_token_ids,
    first_learnt - 1 as prompt_tokens,
    len(ids) - first_learnt + 1 as completion_tokens,
    'tokens' as status,
    case
        when coalesce(len(written_ids), 0) = 0 then 'missing_field'
        when odd_numbers or list_bool_or(list_transform(ids, lambda id: id is null or id < 0 or id > 2147483647))
            then 'wrong_type'
        when len(written_ids) <> coalesce(len(written_labels), len(written_ids))
            or len(written_ids) <> coalesce(len(mask), len(written_ids))
            or len(written_ids) <> coalesce(len(attention), len(written_ids)) then 'wrong_type'
        when list_contains(attention[first_seen:last_seen], 0) then 'wrong_type'
        when len(strange) > 0 then 'wrong_type'
        when first_learnt > len(ids) then 'missing_field'
    end as error_code,
    case
        when coalesce(len(written_ids), 0) = 0 then 'token_ids is not a list of token ids'
        when odd_numbers or list_bool_or(list_transform(ids, lambda id: id is null or id < 0 or id > 2147483647))
            then 'a token id or label is no whole number that a token could have'
        when len(written_ids) <> coalesce(len(written_labels), len(written_ids))
            then printf('%d token ids, but %d labels', len(written_ids), len(written_labels))
        when len(written_ids) <> coalesce(len(mask), len(written_ids))
            then printf('%d token ids, but a mask of %d', len(written_ids), len(mask))
        when len(written_ids) <> coalesce(len(attention), len(written_ids))
            then printf('%d token ids, but an attention_mask of %d', len(written_ids), len(attention))
        when list_contains(attention[first_seen:last_seen], 0)
            then 'attention_mask is 0 between tokens: padding can only stand at the ends'
        when len(strange) > 0
            then printf('label %d is neither -100 nor its own token: labels are not shifted here', strange[1] - 1)
        when first_learnt > len(ids) then 'every label is -100: nothing to learn'
    end as message
from holes
