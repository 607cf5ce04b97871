-- name: sample
-- Whole sessions sampled by hash, the same at every run. $share: about this share of the rows
select interactions.*
from interactions
where ('0x' || md5(coalesce(session_id, interaction_id))[1:8])::ubigint / 4294967296.0 < $share

-- name: decisions
-- What the default rules decide about the sampled rows, each row once.
select stage, rule, count(*) as rows
from decisions
where stage = 'curate' or (stage = 'clean' and not kept)
group by stage, rule
order by rows desc, stage, rule

-- name: sized
-- Rows with the sizes that are counted. Token counts are the log's (is_logged), else the number of its token ids, else one
-- token per 4 characters of JSON.
create or replace temp view sized as
select
    interaction_id, dt, ts, session_id, source_format, content_sha256,
    coalesce(workload_name, '') as workload_name,
    coalesce(client, '') as client,
    coalesce(model, '') as model,
    coalesce(error, '') <> '' or lower(status) in ('failure', 'failed', 'error', 'timeout', 'cancelled')
        or regexp_full_match(coalesce(status, ''), '[45][0-9][0-9]') as has_failed,
    coalesce(cache_hit, false) as cache_hit,
    coalesce(finish_reason, '') in ('length', 'max_tokens') as is_truncated,
    completion_tokens is not null as is_logged,
    completion_token_ids is not null as has_token_ids,
    coalesce(prompt_tokens, len(prompt_token_ids), (length(messages) + length(coalesce(tools, ''))) // 4) as tokens_in,
    coalesce(completion_tokens, len(completion_token_ids), length(completion) // 4, 0) as tokens_out,
    length(messages) + length(coalesce(tools, '')) + length(coalesce(completion, '')) as characters,
    latency_ms, ttft_ms
from interactions

-- name: totals
-- Exact counts over all rows. Copies are rows with the same messages, tools and answer as another row. A row without a time is
-- at midnight.
select
    count(*) as rows,
    count(*) filter (source_format is distinct from 'preferences') as requests,
    count(distinct content_sha256) as different_rows,
    count(distinct dt) as days,
    count(*) filter (has_failed) as failed,
    count(*) filter (cache_hit) as cache_hits,
    count(*) filter (is_truncated) as truncated,
    count(*) filter (is_logged) as logged,
    count(*) filter (has_token_ids) as with_token_ids,
    count(*) filter (ts = date_trunc('day', ts)) as at_midnight,
    coalesce(sum(tokens_in), 0)::bigint as tokens_in,
    coalesce(sum(tokens_out), 0)::bigint as tokens_out,
    coalesce(sum(characters), 0)::bigint as characters,
    quantile_cont(tokens_in, [0.5, 0.9, 0.99]) as tokens_in_at,
    quantile_cont(tokens_out, [0.5, 0.9, 0.99]) as tokens_out_at,
    quantile_cont(latency_ms, [0.5, 0.9, 0.99]) as latency_ms_at,
    quantile_cont(ttft_ms, [0.5, 0.9, 0.99]) as ttft_ms_at
from sized

-- name: formats
-- Objects by format. Objects that no format recognised, that are empty or that could not be read have no format.
select
    case
        when state = 'failed' then 'cannot be read'
        when format <> '' then format
        when coalesce(rows, 0) = 0 then 'empty'
        else 'not recognised'
    end as format,
    count(*) as objects,
    coalesce(sum(bytes), 0)::bigint as bytes,
    coalesce(sum(rows), 0)::bigint as records,
    min(uri) as first_object
from objects
where state <> 'skipped'
group by all
order by objects desc, format

-- name: days
-- Rows by day.
select dt as day, count(*) as rows from sized group by dt
order by dt

-- name: by_name
-- Rows, tokens and failures by each workload, client and model that the log names.
select
    kind, case kind when 'workload' then workload_name when 'client' then client else model end as name,
    count(*) as rows, sum(tokens_in)::bigint as tokens_in, sum(tokens_out)::bigint as tokens_out,
    count(*) filter (has_failed) as failed
from sized
cross join (values ('workload'), ('client'), ('model')) as kinds (kind)
group by all
order by rows desc, name

-- name: quarantined
-- Lines and files in quarantine by code and reason, each with the first place. A message is "reason; remedy"; numbers in a
-- reason (after element 17) are ignored in the grouping.
with conversations_read as (
    select *, regexp_replace(split_part(message, ';', 1), ' [0-9]+', ' #', 'g') as reason
    from quarantine
)

select
    error_code as code, count(*) as lines,
    arg_min(printf('%s:%d', source_uri, source_row), (source_uri, source_row)) as first_place,
    arg_min(message, (source_uri, source_row)) as message
from conversations_read
group by error_code, reason
order by lines desc, code, first_place

-- name: repeated
-- Number of records that are copies of another record.
select count(*) as rows
from decisions
where stage = 'ingest' and rule in ('repeated_record', 'repeated_id')

-- name: failed
-- Objects that could not be read to their end, by reason.
select problem, count(*) as objects, min(uri) as first_object
from objects
where state = 'failed'
group by problem
order by objects desc, problem

-- name: examples
-- Three rows that each rule of curation would drop, by their places in the logs, and the rows that would be kept instead. Details of
-- single rows are left out: they may name what a model wrote (a tool).
select
    decisions.rule, printf('%s:%d', dropped.source_uri, dropped.source_row) as place, if(stage = 'curate', coalesce(decisions.detail, ''), '') as detail,
    coalesce(printf('%s:%d', stays.source_uri, stays.source_row), '') as kept_place
from decisions
join interactions as dropped using (interaction_id)
left join interactions as stays on stays.interaction_id = decisions.kept_id
where decisions.stage in ('clean', 'curate') and not decisions.kept
qualify row_number() over (partition by decisions.rule order by dropped.source_uri, dropped.source_row, interaction_id) <= 3
order by count(*) over (partition by decisions.rule) desc, decisions.rule, dropped.source_uri, dropped.source_row

-- name: pii
-- Personal data by kind: number of values and of rows. The values themselves are not stored.
with found as (
    select interaction_id, unnest(map_entries(pii)) as entry from cleaned_interactions
)
select entry.key as kind, sum(entry.value)::bigint as found, count(distinct interaction_id) as rows
from found
group by kind
order by found desc, kind

-- name: languages
-- Healthy rows by language, and their share of all of them; null where it is unknown.
select language, count(*) as rows, count(*) / sum(count(*)) over () as share
from cleaned_interactions
where status = 'ok'
group by language
order by language is null, rows desc, language

-- name: shapes
-- Prompt shapes of healthy rows, most frequent first.
select prompt_shape as shape, count(*) as rows
from cleaned_interactions
where status = 'ok'
group by prompt_shape
order by rows desc, shape

-- name: sessions
-- Session lengths in requests. Where the log has no session id, requests that begin alike are one session.
with lengths as (
    select session_id, count(*) as requests from cleaned_interactions group by session_id
)
select
    count(*) as sessions, avg(requests) as mean, quantile_cont(requests, [0.5, 0.9, 0.99]) as requests_at,
    max(requests) as longest, count(*) filter (requests = 1) as single
from lengths

-- name: with_feedback
-- Number of sampled rows with feedback, and with feedback below zero.
select count(*) filter (feedback is not null) as rows, count(*) filter (feedback < 0) as below_zero from cleaned_interactions

-- name: drawn
-- Healthy rows sampled by hash up to $characters of text, as input of curating/clean/messages.
create or replace temp table conversations as
with drawn as (
    select
        interactions.interaction_id, interactions.messages, interactions.tools, interactions.completion,
        interactions.prompt_token_ids, interactions.completion_token_ids,
        coalesce(interactions.workload_name, '') as workload_name, cleaned_interactions.prompt_shape as shape,
        md5(interactions.interaction_id) as draw,
        length(interactions.messages) + length(coalesce(interactions.tools, '')) + length(interactions.completion) as characters
    from interactions
    join cleaned_interactions using (interaction_id)
    where cleaned_interactions.status = 'ok'
)
select *
from drawn
qualify sum(characters) over (order by draw rows unbounded preceding) - characters < $characters

-- name: answers
-- Answers that the n-gram drafter is measured on: the request as one text, the answer, and token ids where the log has both.
with conversations_read as (
    select
        interaction_id,
        string_agg(text, chr(10) order by position) filter (where not is_answer) as prompt,
        max(text) filter (where is_answer) as answer
    from messages
    group by interaction_id
)
select
    workload_name, shape, concat_ws(chr(10), tools, prompt) as prompt, answer,
    case when completion_token_ids is not null then prompt_token_ids end as prompt_token_ids,
    case when prompt_token_ids is not null then completion_token_ids end as completion_token_ids
from conversations
join conversations_read using (interaction_id)
order by draw

-- name: people
-- Requests that were read, and those with a user and with a session.
select count(*) as requests, count(user_hash) as with_user, count(session_id) as with_session from interactions

-- name: row_characters
-- Characters of a dataset's first rows. $file: its training split
select length(coalesce(messages, text, '')) + length(coalesce(tools, '')) as characters from read_parquet($file) limit $most

-- name: pair_characters
-- Mean characters of a pair's prompt and answers. $file: its training split
select avg(length(prompt) + length(chosen) + length(rejected)) as characters from read_parquet($file)
