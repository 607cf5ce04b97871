-- name: stale_days
-- Days to clean again: rows arrived late, changed or were removed, or the day was cleaned with other rules or code. The cleaned
-- row of an emptied one stays as it is, since nothing is left to clean.
with changed as (
    (select dt, interaction_id, content_sha256 from interactions where emptied is null
     except
     select dt, interaction_id, content_sha256 from cleaned_interactions)
    union all
    (select dt, interaction_id, content_sha256 from cleaned_interactions
     except
     select dt, interaction_id, content_sha256 from interactions)
)
select distinct dt from changed
union
select distinct dt
from cleaned_interactions
anti join (select dt, interaction_id from interactions where emptied is not null) as emptied using (dt, interaction_id)
where $cleaned_with is not null and cleaned_with is distinct from $cleaned_with
order by dt

-- name: cleaned_with_ids
-- All cleaned rows with the ids that feedback may name, as input of curating/clean/row_feedback.
create or replace temp view conversations as
select
    cleaned_interactions.workload, cleaned_interactions.interaction_id, interactions.request_id, interactions.alias_id,
    interactions.trace_id, cleaned_interactions.session_id
from cleaned_interactions
left join interactions using (interaction_id)

-- name: days_with_changed_feedback
-- Days with rows whose feedback changed since they were cleaned. Emptied rows cannot be cleaned again: curation reads their
-- feedback.
select distinct dt
from cleaned_interactions
left join row_feedback using (interaction_id)
anti join (select interaction_id from interactions where emptied is not null) as emptied using (interaction_id)
where row_feedback.value is distinct from cleaned_interactions.feedback
order by dt

-- name: corrections
-- People's corrections of answers: of several of one answer the newest. mark: a number of the text.
create or replace temp table corrections as
select
    interaction_id, arg_max(comment, (ts, source_uri, source_row)) as correction,
    (md5_number(correction) % 9007199254740992)::double as mark
from feedback
where name = 'correction' and label = 'corrected' and comment is not null and interaction_id is not null
group by interaction_id

-- name: days_with_changed_corrections
-- Days with rows whose correction came, changed or went since they were cleaned.
select distinct dt
from cleaned_interactions
left join corrections using (interaction_id)
anti join (select interaction_id from interactions where emptied is not null) as emptied using (interaction_id)
where mark is distinct from cleaned_interactions.quality['correction']
order by dt

-- name: days_with_changed_chains
-- Days with rows that would now begin with another number of earlier messages than when they were cleaned.
select distinct chains.dt
from chains
join cleaned_interactions using (interaction_id)
where len(chains.earlier) is distinct from cast(cleaned_interactions.quality['earlier_turns'] as bigint)

-- name: has_chains
-- Whether any interaction goes on from an earlier response.
select count(*) > 0 as found
from interactions
where contains(params, '"previous_response_id"')

-- name: chains
-- What an earlier response put before the messages of each request that names one: the messages and answers of the chain, oldest
-- first, without the instructions of other requests, which the API does not carry on. Null where the log lacks a part of the chain,
-- whatever order it arrived in. responses: all interactions of the workload. $days: of rows of these days; null: of all.
create or replace temp table chains as
with recursive links as (
    select
        interaction_id, dt, source, request_id,
        if(emptied is null, params ->> '$.context.previous_response_id', null) as previous,
        emptied is null and status = 'success' and completion is not null
        and (params ->> '$.context.elsewhere') is null as is_known
    from responses
),
named as (
    select source, request_id, any_value(interaction_id) as interaction_id, any_value(previous) as previous,
        bool_and(is_known) and count(*) = 1 as is_known
    from links
    where request_id in (select previous from links)
    group by source, request_id
),
walk as (
    select
        links.interaction_id, links.dt, links.source, 1 as place, links.previous, named.interaction_id as earlier_id,
        named.previous as before, coalesce(named.is_known, false) as is_known
    from links
    left join named on named.source = links.source and named.request_id = links.previous
    where links.previous is not null and ($days is null or list_contains($days::date[], links.dt))
    union all
    select
        walk.interaction_id, walk.dt, walk.source, walk.place + 1, walk.before, named.interaction_id, named.previous,
        coalesce(named.is_known, false)
    from walk
    left join named on named.source = walk.source and named.request_id = walk.before
    where walk.before is not null and walk.is_known and walk.place < 1000
),
said as (
    select
        interaction_id as earlier_id,
        list_append(
            try_cast(messages as json[])[if(coalesce(params -> '$.context.has_instructions', 'false') = 'true', 2, 1):],
            try_cast(completion as json)
        ) as turns
    from responses
    semi join walk on walk.earlier_id = responses.interaction_id
)
select
    walk.interaction_id, any_value(walk.dt) as dt,
    case
        when bool_and(walk.is_known) and count(*) filter (walk.before is null) = 1
            then flatten(list(said.turns order by walk.place desc))
    end as earlier
from walk
left join said using (earlier_id)
group by walk.interaction_id

-- name: bytes_by_day
-- Bytes of text per day. Days are cleaned in parts that fit in memory.
select
    dt, sum(coalesce(strlen(messages), 0) + coalesce(strlen(completion), 0) + coalesce(strlen(tools), 0))::bigint as bytes
from interactions
group by dt

-- name: decisions
-- One decision per row of these days, by the rules on single rows.
select
    workload, 'clean' as stage, '' as version, dt, facts.interaction_id,
    coalesce(broken_rules.rule, 'kept') as rule,
    broken_rules.rule is null as kept,
    nullif(broken_rules.detail, '') as detail,
    cast(null as varchar) as kept_id
from facts
left join broken_rules using (interaction_id)
order by dt, facts.interaction_id

-- name: counts
-- Number of rows by day and rule.
select dt, coalesce(broken_rules.rule, 'kept') as rule, count(*) as rows
from facts
left join broken_rules using (interaction_id)
group by all
order by all

-- name: pii_counts
-- Number of replaced values by kind.
with replaced as (select unnest(map_entries(pii)) as entry from facts)
select entry.key as kind, sum(entry.value)::bigint as values_replaced from replaced group by kind order by kind

-- name: has_emptied
-- A row if retention emptied any interaction of these days.
select true as found
from interactions
where emptied is not null
limit 1

-- name: kept_facts
-- Cleaned rows whose interaction was emptied of its text: they stay as they are. One part of the sessions.
select cleaned_interactions.*
from cleaned_interactions
semi join (select dt, interaction_id from interactions where emptied is not null) as emptied using (dt, interaction_id)
where hash(session_id) % $parts = $part

-- name: kept_decisions
-- Decisions of cleaning on rows whose interaction was emptied of its text. One part of them.
select decisions.*
from decisions
semi join (select dt, interaction_id from interactions where emptied is not null) as emptied using (dt, interaction_id)
where stage = 'clean' and hash(interaction_id) % $parts = $part

-- name: arrived
-- Raw rows of the days to clean, or one part of their sessions, without rows that retention emptied. Messages begin with those of
-- the earlier response that the request names. context: what of the prompt the log does not have. Where a log has no session
-- id, requests of one client that begin alike (same instructions, same first user message) share a session: a conversation
-- repeats its beginning with every turn.
create or replace temp table arrived as
with whole as (
    select
        interactions.* replace (
            case
                when earlier is null then messages
                when coalesce(params -> '$.context.has_instructions', 'false') = 'true' then cast(to_json(list_concat(
                    cast(messages as json[])[:1], earlier, cast(messages as json[])[2:]
                )) as varchar)
                else cast(to_json(list_concat(earlier, cast(messages as json[]))) as varchar)
            end as messages
        ),
        coalesce(
            params ->> '$.context.elsewhere',
            case when earlier is null and (params ->> '$.context.previous_response_id') is not null then 'previous_response_id' end
        ) as context,
        len(earlier) as earlier_turns,
        mark,
        correction,
        correction is not null and coalesce(status, '') not in ('prompt', 'text', 'tokens')
            and one_spacing(one_line(correction)) <> coalesce(one_spacing(one_line(try(completion ->> '$.content'))), '') as is_corrected
    from interactions
    left join chains using (interaction_id)
    left join corrections using (interaction_id)
    where emptied is null
),
-- a correction stands in place of the answer; later requests repeat the answer as it was
corrected as (
    select
        * exclude (correction, is_corrected) replace (
            case
                when is_corrected then cast(json_merge_patch(
                    coalesce(completion, '{}'), json_object('role', 'assistant', 'content', correction, 'refusal', null)
                ) as varchar)
                else completion
            end as completion,
            case when is_corrected is distinct from true then reasoning end as reasoning,
            case when is_corrected and finish_reason is distinct from 'tool_calls' then 'stop' else finish_reason end as finish_reason
        ),
        case when is_corrected then completion end as replaced
    from whole
),
placed as (
    select
        * replace (
            case
                when session_id is not null then session_id
                else coalesce(beginning(client, messages), 'alone:' || interaction_id)
            end as session_id
        )
    from corrected
)
select * exclude (prompt_token_ids, completion_token_ids, params, emptied), request_of(params) as request
from placed
where hash(session_id) % $parts = $part

-- name: arrived_as_conversations
-- Raw rows as input of curating/clean/row_feedback and pii_candidates.
create or replace temp view conversations as select * from arrived

-- name: cleaned
-- Rows with personal data replaced.
create or replace temp view cleaned as
select
    arrived.* exclude (messages, tools, completion, replaced, reasoning, request),
    coalesce(redactions.messages, arrived.messages) as messages,
    coalesce(redactions.tools, arrived.tools) as tools,
    coalesce(redactions.completion, arrived.completion) as completion,
    coalesce(redactions.replaced, arrived.replaced) as replaced,
    coalesce(redactions.reasoning, arrived.reasoning) as reasoning,
    coalesce(redactions.request, arrived.request) as request,
    coalesce(redactions.pii, cast(map {} as map(varchar, integer))) as pii
from arrived
left join redactions using (interaction_id)

-- name: cleaned_as_conversations
-- Rows after redaction as input of curating/clean/texts.
create or replace temp view conversations as select * from cleaned

-- name: texts
-- The texts that each conversation is measured by. Near duplicates are compared by `new_turn` (the messages after the last
-- answer, without system prompt) and `answer`. With the history, two turns of one conversation would look alike; with the
-- system prompt, all rows of a product would. said: the beginnings of the first messages of the user.
create or replace temp table texts as
with conversations_read as (
    select
        interaction_id,
        completion,
        conversation_with_identities(messages, completion) as conversation,
        coalesce(try(json_type(completion)) = 'OBJECT', false) as answered
    from conversations
),
split_texts as (
    select
        interaction_id,
        conversation,
        if(answered, conversation[1:-2], conversation) as prompt,
        if(answered, conversation[-1].text, null) as answer,
        case
            when not answered then null
            when contains(completion, '"tool_calls"') then coalesce(completion ->> '$.content', '')
            else conversation[-1].text
        end as answer_text
    from conversations_read
),
turns as (
    select
        *,
        list_filter(prompt, lambda message: message.role in ('system', 'developer')) as system_messages,
        new_messages(prompt) as new_messages_list
    from split_texts
)
select
    interaction_id,
    array_to_string(list_transform(new_messages_list, lambda message: message.text), ' ') as new_turn,
    new_messages_list[1].role as new_role,
    array_to_string(list_transform(system_messages, lambda message: message.text), ' ') as instructions,
    answer,
    answer_text,
    sha256(array_to_string(list_transform(conversation, lambda message: message.identity), ' ')) as normalised_sha256,
    coalesce(list_sum(list_transform(prompt, lambda message: length(message.text))), 0)::bigint as prompt_characters,
    coalesce(length(answer), 0) as completion_characters,
    len(prompt) as prompt_messages,
    list_transform(
        list_filter(prompt, lambda message: message.role = 'user')[1:5], lambda message: message.text[1:2000]
    ) as said
from turns

-- name: broken_rules
-- The first rule that each row breaks, in the order of the rule groups. Rows with positive feedback pass the rules on style
-- (language and after) where the recipe says so.
create or replace temp table broken_rules as
with failed as (
    select * from failed_status
    union all
    select * from failed_tools
    union all
    select * from failed_language
    union all
    select * from failed_repetition
    union all
    select * from failed_length
    union all
    select * from failed_refusal
),
counted as (
    select failed.*
    from failed
    left join row_feedback using (interaction_id)
    where place <= 2 or not ($keep_thumbs_up and coalesce(row_feedback.value, 0) > 0)
)
select interaction_id, arg_min(rule, place) as rule, arg_min(coalesce(detail, ''), place) as detail
from counted
group by interaction_id

-- name: facts
-- The cleaned rows: one per interaction, with its status (the rule that drops it, or ok) and its measures.
select
    cleaned.workload, cleaned.dt, cleaned.interaction_id, cleaned.content_sha256, cleaned.session_id, cleaned.ts, cleaned.source,
    cleaned.messages, cleaned.tools, cleaned.completion, cleaned.replaced, cleaned.reasoning, cleaned.request,
    coalesce(broken_rules.rule, 'ok') as status,
    row_feedback.value as feedback,
    coalesce(prompt_characters, 0) as prompt_characters,
    coalesce(completion_characters, 0) as completion_characters,
    pii,
    measured.language,
    map_from_entries(list_filter(
        [
            {k: 'answer_words', v: measured.answer_words::double},
            {k: 'answer_to_prompt', v: if(prompt_characters > 0, completion_characters / prompt_characters, null)},
            {k: 'correction', v: cleaned.mark},
            {k: 'earlier_turns', v: cleaned.earlier_turns::double},
            {k: 'calls_without_tools', v: if(coalesce(try(json_array_length(cleaned.tools)), 0) = 0, nullif(
                coalesce(try(json_array_length(cleaned.completion, '$.tool_calls')), 0)
                + if(try(json_type(cleaned.completion, '$.function_call')) = 'OBJECT', 1, 0), 0
            )::double, null)},
            {k: 'repeats', v: if(measured.repeats > 1, measured.repeats::double, null)},
            {k: 'code_share', v: nullif(measured.code_share, 0)},
            {k: 'language_confidence', v: nullif(measured.language_confidence, 0)},
            {k: 'duplicate_lines', v: measured.duplicate_lines},
            {k: 'duplicate_paragraphs', v: measured.duplicate_paragraphs},
            {k: 'duplicate_line_characters', v: measured.duplicate_line_characters},
            {k: 'duplicate_paragraph_characters', v: measured.duplicate_paragraph_characters},
            {k: 'top_2gram', v: measured.top_2gram},
            {k: 'top_3gram', v: measured.top_3gram},
            {k: 'top_4gram', v: measured.top_4gram},
            {k: 'duplicate_5grams', v: measured.duplicate_5grams},
            {k: 'duplicate_6grams', v: measured.duplicate_6grams},
            {k: 'duplicate_7grams', v: measured.duplicate_7grams},
            {k: 'duplicate_8grams', v: measured.duplicate_8grams},
            {k: 'duplicate_9grams', v: measured.duplicate_9grams},
            {k: 'duplicate_10grams', v: measured.duplicate_10grams}
        ],
        lambda each: each.v is not null
    )) as quality,
    shape_of(new_role, topic, messages, tools, client, instructions) as prompt_shape,
    -- token ids have no text: two such rows are exact duplicates if all ids and labels agree, and never near duplicates
    if(cleaned.status = 'tokens', content_sha256, normalised_sha256) as normalised_sha256,
    if(broken_rules.rule is null and cleaned.status is distinct from 'tokens', coalesce(measured.signature, []), []) as signature,
    $cleaned_with as cleaned_with
from cleaned
left join texts using (interaction_id)
left join row_topics using (interaction_id)
left join measured using (interaction_id)
left join broken_rules using (interaction_id)
left join row_feedback using (interaction_id)
order by session_id, ts, cleaned.interaction_id

-- name: pii_columns
-- The columns that are searched for personal data.
select interaction_id, messages, tools, completion, replaced, reasoning, request from conversations

-- name: pii_candidates
-- Rows that may contain personal data, in the order in which their session's placeholders are numbered, and the columns in
-- which it may be.
select
    interaction_id, session_id, dt, messages, tools, completion, replaced, reasoning, request, searched_messages, searched_tools,
    searched_completion, searched_replaced, searched_reasoning, searched_request
from conversations
inner join suspects using (interaction_id)
order by session_id, dt, ts, interaction_id

-- name: measured_texts
-- Texts that are measured outside SQL: near duplicates by new turn and answer, everything else by the answer's text.
select interaction_id, new_turn, answer, answer_text from texts

-- name: messages
-- Every message of every conversation, the answer last: role, text, and the hash by which equal messages are recognised.
create or replace temp table messages as
with conversations_read as (
    select
        interaction_id,
        conversation_with_identities(messages, completion) as conversation,
        try(json_type(completion)) = 'OBJECT' as answered
    from conversations
),
spread as (
    select
        interaction_id,
        len(conversation) - if(answered, 1, 0) as prompt_messages,
        unnest(conversation) as message,
        generate_subscripts(conversation, 1) as position
    from conversations_read
)
select
    interaction_id,
    position,
    position > prompt_messages as is_answer,
    message.role, message.text, message.identity
from spread

-- name: feedback_by_name
-- Feedback by name: records, mean, least and largest number (`up` and `true` are none), whether all numbers are 0 or 1, how many
-- records are below zero, how many are read by the name's meaning (by_name), how many hold words that nothing reads, how many are
-- tied to an interaction.
with known as (
    select
        feedback.*,
        kind, not isnan(value) and (abs(value) <> 1 or coalesce(kind, 'nothing') = 'nothing') as is_number
    from feedback
    left join feedback_words on word = regexp_replace(lower(trim(label)), '[\s_-]+', '_', 'g')
    where tie is distinct from 'elsewhere'
)
select
    name, count(*) as records, avg(value) as mean, min(value) filter (is_number) as low, max(value) filter (is_number) as high,
    coalesce(bool_and(value in (0, 1)) filter (is_number), false) as is_flag, count(*) filter (value < 0) as below_zero,
    count(*) filter (is_number or kind = 'truth') as by_name,
    count(*) filter (value is null and kind is null and label is not null and name <> 'correction') as words,
    count(*) filter (interaction_id is not null) as tied, count(*) filter (tie = 'several') as several
from known
group by name
order by records desc, name

-- name: graded_feedback
-- The last vote of each person and name on each id, without those that were taken back. Of one time the last line of a file counts,
-- and the lowest of several files. grade: the value by its scale (feedback_scales) or its
-- word (feedback_words), good above 0, bad below. Values of a name that does not say which end is good have none.
create or replace temp view graded_feedback as
with known as (
    select
        feedback_by_id.*, least, kind, side, coalesce(end_of_good, 1) as end_of_good,
        case
            when isnan(value) then null
            when value < least then value - least
            when least is not null then greatest(value, value - least)
            when value > most then most - value
            when most is not null then 1 + most - value
            when coalesce(end_of_good, 1) = 1 then value
        end as bounded
    from feedback_by_id
    left join feedback_scales using (name)
    left join feedback_words on word = regexp_replace(lower(trim(label)), '[\s_-]+', '_', 'g')
    where tie is distinct from 'elsewhere'
),
graded as (
    select
        * exclude (least, kind, side, end_of_good, bounded),
        case
            when kind = 'nothing' and coalesce(value, 0) = 0 then null
            when kind = 'truth' and (abs(value) = 1 or bounded is null) then nullif(end_of_good, 0) * side
            when kind = 'side' and (abs(value) = 1 or coalesce(bounded * side, 0) <= 0) then side
            else bounded
        end as grade,
        coalesce(kind = 'nothing' and coalesce(value, 0) = 0, false) as is_taken_back
    from known
)
select * exclude (is_taken_back)
from (
    from graded
    where grade is not null or is_taken_back
    qualify row_number() over (
        partition by name, id_rank, named_id, voter_hash, source_uri order by ts desc, source_row desc, grade
    ) = 1
)
qualify grade is not null
    and row_number() over (partition by name, id_rank, named_id, voter_hash order by ts desc, grade) = 1
    -- an empty cell of a column of thumbs has no name
    and (name <> 'thumbs' or coalesce((ts, source_uri, source_row) > max(
        case when is_taken_back and name = 'feedback' then (ts, source_uri, source_row) end
    ) over (partition by id_rank, named_id, voter_hash), true))

-- name: row_feedback
-- People's feedback on each interaction as one number. A record counts for the rows that its most specific id names, and a row
-- takes only the most specific records. Of several records of one person with one name the newest counts (a thumb may change);
-- across names and people the lowest: one complaint is enough.
create or replace temp table row_feedback as
with matched as (
    select
        interaction_ids.interaction_id, name, voter_hash, grade, ts, interaction_ids.id_rank,
        min(interaction_ids.id_rank) over (partition by interaction_ids.interaction_id) as best_rank
    from interaction_ids
    join graded_feedback using (id_rank, named_id)
),
newest as (
    select interaction_id, arg_max(grade, (ts, -grade)) as value
    from matched
    where id_rank = best_rank
    group by interaction_id, name, voter_hash
)
select interaction_id, min(value) as value
from newest
group by interaction_id
