-- name: tombstones
-- Hashes of erased data.
select kind, sha256
from erased_hashes
order by kind, sha256

-- name: exchanges_of
-- The exchanges of a conversation (conversation_texts): each message of a user with the answer that follows it, in one spelling of
-- case and white space. Short ones are anybody's and do not count.
create or replace temp macro exchanges_of(conversation) as
    list_filter(
        list_transform(
            range(1, len(conversation)),
            lambda place: case
                when conversation[place].role = 'user' and conversation[place + 1].role = 'assistant'
                    and length(conversation[place].text) + length(conversation[place + 1].text) >= 32
                    then lower(concat(
                        trim(regexp_replace(conversation[place].text, '\s+', ' ', 'g')), chr(31),
                        trim(regexp_replace(conversation[place + 1].text, '\s+', ' ', 'g'))
                    ))
            end
        ),
        lambda exchange: exchange is not null
    )

-- name: erased
-- Seeds with an exchange that was erased from the lake.
create or replace temp table erased_seeds as
with seeds_read as (
    select
        row_id, messages,
        case when text is not null then cast(to_json(struct_pack("content" := text)) as varchar) end as completion
    from seeds
),
told as (
    select row_id, unnest(exchanges_of(conversation_texts(messages, completion))) as exchange
    from seeds_read
)
select distinct row_id
from told
where sha256(concat($user_hash_key, chr(31), exchange)) in (select sha256 from erased_hashes where kind = 'exchange')

-- name: erased_by_source
-- Number of seeds with an erased exchange, by source.
select source, count(*) as rows
from seeds
join erased_seeds using (row_id)
group by source
order by source

-- name: not_erased
-- Seeds without an erased exchange, unchanged.
select *
from seeds
where row_id not in (select row_id from erased_seeds)

-- name: contaminated
-- Seeds that contain evaluation items, and which items.
select row_id, source, source_uri, source_row, suite, item_id, part, share
from seeds
join contaminated on contaminated.interaction_id = seeds.row_id
order by source, source_uri, source_row, suite, item_id, part

-- name: contaminated_by_source
-- Number of seeds with an evaluation item, by source.
select source, count(*) as rows
from seeds
where row_id in (select interaction_id from contaminated)
group by source
order by source

-- name: dataset_examples
-- Training rows of another dataset as examples. Their ids stay; an interaction's id becomes a seed's.
select
    if(starts_with(row_id, 'seed:'), row_id, 'seed:' || left(content_sha256, 24)) as row_id, messages, tools, request, text,
    token_ids, labels, content_sha256, synthetic, session_id, interaction_ids
from once
order by row_id

-- name: examples
-- One example per staged record, in file and line order. A conversation gives its last answer, which contains the others; a
-- preference gives the chosen answer. A quarantined record has a `problem`. $turns: formats whose records are conversations
with ranked as (
    select *, max(part) over (partition by object, row) as last_part
    from staged
),
rejected as (
    select distinct interaction_id
    from staged_feedback
    where extra and (
        (name = 'preference' and value < 0)
        or (starts_with(name, 'label of ') and value = 0 and not exists (
            select 1 from staged_feedback where starts_with(name, 'label of ') and value > 1
        ))
    )
),
found as (
    select
        source, source_uri, source_row, part, status, source_format, request_id, alias_id, session_id, user_hash, messages, tools, completion, reasoning,
        case when status = 'tokens' then list_concat(prompt_token_ids, completion_token_ids) end as token_ids,
        case when status = 'tokens' then labels_of(prompt_token_ids, completion_token_ids, params) end as labels,
        cast(null as varchar) as problem
    from ranked
    anti join rejected using (interaction_id)
    where part = last_part or not list_contains($turns, source_format)
    union all by name
    select batch.source, batch.uri as source_uri, quarantined.row as source_row, quarantined.message as problem
    from quarantined
    inner join batch using (object)
    union all by name
    select batch.source, batch.uri as source_uri, staged_feedback.source_row, 'feedback is no example to learn from' as problem
    from staged_feedback
    inner join batch using (object)
    where not staged_feedback.extra
)
select * exclude (part)
from found
order by source_uri, source_row, part, problem

-- name: kept
-- Seeds without evaluation items, unchanged.
select *
from seeds
where row_id not in (select interaction_id from contaminated)

-- name: rows_of_dataset
-- Training rows of another dataset, each once. Datasets of earlier versions do not say what is synthetic.
-- placeholders: synthetic
create or replace temp view once as
select
    row_id, messages, tools, request, text, token_ids, labels, content_sha256, {synthetic} as synthetic, session_id,
    interaction_ids
from dataset_rows
qualify row_number() over (partition by row_id) = 1

-- name: searched_rows
-- Seeds as the rows that resources/curating/decontamination.py searches.
create or replace temp view searched_rows as
select
    row_id,
    messages,
    case when text is not null then to_json(struct_pack("role" := 'assistant', "content" := text)) end as completion
from seeds
