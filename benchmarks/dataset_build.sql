-- The plain side of dataset_build.py: DuckDB's own tools, no macro and no step of the project.
create temp table curated as select * from read_parquet('{curated}');

create temp table answers as
with spread as (
    select
        interaction_id, session_id,
        unnest(list_concat(from_json(messages, '["JSON"]'), [completion::json])) as message,
        generate_subscripts(list_concat(from_json(messages, '["JSON"]'), [completion::json]), 1) as position,
        json_array_length(messages) as before
    from curated
),
hashed as (
    select
        interaction_id, session_id, position, position > before as is_answer, message ->> '$.role' as role,
        md5(string_agg(
            coalesce(message ->> '$.role', '') || chr(1) || lower(trim(coalesce(message ->> '$.content', '')))
            || coalesce(message ->> '$.tool_calls[0].function.arguments', ''), chr(2)
        ) over (partition by interaction_id order by position)) as prefix
    from spread
)
select * from hashed where role = 'assistant';

create temp table contained as
select distinct one.interaction_id
from answers as one
join answers as other using (session_id, prefix)
where one.is_answer and not other.is_answer and one.interaction_id <> other.interaction_id;

create temp table conversations as
select
    interaction_id as row_id, source, session_id, workload, ts, prompt_shape, tools, content_sha256,
    to_json(list_append(from_json(messages, '["JSON"]'), completion::json))::varchar as messages,
    ('0x' || md5('0:' || session_id)[1:8])::ubigint / 4294967296.0 as draw
from curated
where interaction_id not in (select interaction_id from contained);

create temp table sampled as
with placed as (
    select
        *,
        case when draw < 0.1 then 'test' when draw >= 0.95 then 'validation' else 'train' end as split
    from conversations
),
ranked as (
    select
        *,
        row_number() over (partition by split, source, prompt_shape order by md5('0:row:' || row_id)) as turn
    from placed
)
select * exclude (draw, turn)
from ranked
where split <> 'train' or turn <= {wanted} / (select count(distinct prompt_shape) from placed where split = 'train');

copy (select * from sampled where split = 'train' order by md5('0:row:' || row_id))
    to '{output}/train.parquet' (format parquet, compression zstd);
copy (select * from sampled where split = 'validation' order by md5('0:row:' || row_id))
    to '{output}/validation.parquet' (format parquet, compression zstd);
copy (select * from sampled where split = 'test' order by md5('0:row:' || row_id))
    to '{output}/test.parquet' (format parquet, compression zstd);
