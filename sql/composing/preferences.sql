-- name: sessions
-- Sessions of the answers with their user: the first one that their requests name.
create or replace temp table training_conversations as
select
    cleaned_interactions.session_id,
    arg_min(interactions.user_hash, (interactions.ts, interaction_id)) filter (where interactions.user_hash is not null) as user_hash
from cleaned_interactions
join interactions using (interaction_id)
where cleaned_interactions.status = 'ok'
group by cleaned_interactions.session_id

-- name: answered
-- Cleaned answers as hashes, without rows that hold evaluation items. prompt, answer: as clients repeat them, without case and
-- spacing. rendered, said: as a chat template shows them. corrected: the answer that a person's edit puts in its place. record: the log line. place: of the split, 1 is the most protected.
-- propensity: 1 / the share of sessions that the gateway kept, at most $propensity_clip (null: 1).
create or replace temp table answered as
with conversations_read as (
    select
        interaction_id, session_id, ts, tools, request, contains(completion, '"tool_calls"') as has_calls,
        -- a corrected answer counts as it was logged
        conversation_with_identities(messages, coalesce(replaced, completion)) as conversation,
        conversation_with_identities('[]', nullif(completion, if(replaced is null, completion, null)))[1].identity as corrected
    from cleaned_interactions
    where status = 'ok' and try(json_type(completion)) = 'OBJECT'
        and interaction_id not in (select interaction_id from contaminated)
),
kept_shares as (
    select
        interaction_id, concat_ws(' ', source_uri, source_row) as record,
        source_format in ('oasst', 'preferences') as is_compared, try_cast(params ->> '$.kept_share' as double) as kept_share
    from interactions
)
select
    interaction_id, session_id, conversations_read.ts, coalesce(user_hash, session_id) as voter, record, is_compared,
    has_calls, corrected, list_position(['test', 'validation', 'train'], split) as place,
    md5(
        array_to_string(list_transform(conversation[1:-2], lambda message: message.identity), ' ') || chr(1) || coalesce(tools, '')
    ) as prompt,
    conversation[-1].identity as answer,
    md5(concat_ws(chr(1), array_to_string(list_transform(
        conversation[1:-2], lambda message: concat(message.role, chr(2), message.identity, message.text)
    ), chr(3)), coalesce(tools, ''), coalesce(request, ''))) as rendered,
    md5(conversation[-1].identity || conversation[-1].text) as said,
    interaction_id in (
        select interaction_id from decisions where stage = 'curate' and version = $curated and rule = 'low_quality'
    ) as is_low_quality,
    if($propensity_clip::double is not null and kept_share > 0 and kept_share <= 1, least($propensity_clip, 1 / kept_share), 1)
        as propensity
from conversations_read
join kept_shares using (interaction_id)
join training_conversations using (session_id)
join split_groups using (session_id)
where len(conversation) > 1

-- name: repeated_answers
-- Answers as later requests of a session repeat them: what the conversation went on from. `said` identifies the text; reaction:
-- the user's next message.
create or replace temp table repeated_answers as
with histories as (
    -- no answer, but not the literal null, for which the macro cannot be bound
    select session_id, tools, messages, conversation_with_identities(messages, nullif(completion, completion)) as conversation
    from cleaned_interactions
    where status = 'ok'
),
places as (
    select *, unnest(range(2, len(conversation) + 1)) as place
    from histories
)
select
    session_id,
    md5(
        array_to_string(list_transform(conversation[1:place - 1], lambda message: message.identity), ' ') || chr(1)
        || coalesce(tools, '')
    ) as prompt,
    conversation[place].identity as said,
    any_value(cast(messages as json) -> (place - 1)) as message,
    any_value(conversation[place].text) as text,
    any_value(cast(messages as json) -> place) filter (where conversation[place + 1].role = 'user') as reaction
from places
where conversation[place].role = 'assistant'
group by all

-- name: reactions
-- Answers with the user's next message, for a judge: at most $max_rows, drawn by hash. Their conversation ends with the reaction.
select
    interaction_id, coalesce(replaced, completion) as completion,
    cast(to_json(list_concat(
        list_append(cast(messages as json[]), json_merge_patch(coalesce(replaced, completion), '{"role": "assistant"}')), [reaction]
    )) as varchar) as messages
from answered
join repeated_answers on repeated_answers.session_id = answered.session_id and repeated_answers.prompt = answered.prompt
    and repeated_answers.said = answered.answer
join cleaned_interactions using (interaction_id)
where reaction is not null
qualify $max_rows::bigint is null or row_number() over (order by md5(interaction_id)) <= $max_rows
order by md5(interaction_id)

-- name: votes
-- Verdicts on answers, the last one of each voter on each text. kind: ranked (the log compares answers of one record), outcome (one
-- verdict on several answers: a session's), rated (a verdict on one answer), dissatisfied (`reaction_ratings`, 1 to 10, of at most
-- $dissatisfaction). On a text that a person corrected every verdict but a rank is bad. kin: prompts that may be meant as the same.
-- share: 1 / answers that the verdict is about.
create or replace temp table votes as
with matched as (
    select
        interaction_ids.interaction_id, id_rank, named_id, name, graded_feedback.source as given_by, ts,
        min(id_rank) over (partition by interaction_ids.interaction_id) as best_rank
    from interaction_ids
    join graded_feedback using (id_rank, named_id)
),
named as (
    select id_rank, named_id, count(distinct interaction_id) as answers
    from interaction_ids
    group by all
),
kinds as (
    select
        interaction_id, max(ts) as voted_ts,
        case
            when bool_or(name = 'preference' and given_by in ('rank', 'preferences')) then 'ranked'
            when bool_or(given_by = 'outcome' or (id_rank >= 3 and answers > 1)) then 'outcome'
            else 'rated'
        end as kind,
        bool_or(given_by = 'preferences') as is_line
    from matched
    join named using (id_rank, named_id)
    where id_rank = best_rank
    group by interaction_id
),
verdicts as (
    select interaction_id, kind, value, voted_ts, is_line
    from kinds
    join row_feedback using (interaction_id)
    union all
    select interaction_id, 'dissatisfied', (rating - 5.5) / 4.5, null, false
    from reaction_ratings
    where rating <= $dissatisfaction::double and interaction_id not in (select interaction_id from kinds where kind <> 'outcome')
),
cast_votes as (
    select
        interaction_id, session_id, kind, rendered, said, if(kind = 'ranked', record, '') as contest,
        -- whoever liked an answer that a person corrected had not seen what was wrong
        if(
            kind <> 'ranked' and (rendered, said) in (select (rendered, said) from answered where corrected is not null),
            least(value, -1), value
        ) as value,
        if(is_line, record, prompt) as kin, if(kind = 'ranked', interaction_id, voter) as voter, coalesce(voted_ts, ts) as ts, place,
        propensity, if(kind = 'outcome', 1 / count(*) over (partition by kind, session_id), 1) as share
    from verdicts
    join answered using (interaction_id)
)
select *
from cast_votes
qualify row_number() over (partition by kind, contest, rendered, said, voter order by ts desc, interaction_id desc) = 1

-- name: grades
-- The mean verdict on each text that answers a prompt, and 0 for texts without a verdict beside rated ones. spread: between verdicts.
create or replace temp table grades as
select
    kind, contest, rendered, said, any_value(kin) as kin, avg(value) as value, max(value) - min(value) as spread,
    arg_max(interaction_id, (ts, interaction_id)) as interaction_id,
    list(struct_pack(interaction_id, voter, ts, place, propensity) order by ts, interaction_id) as votes
from votes
where kind <> 'dissatisfied'
group by kind, contest, rendered, said
union all
select 'rated', '', rendered, said, any_value(prompt), 0, 0, arg_max(interaction_id, (ts, interaction_id)), []
from answered
where prompt in (select kin from votes where kind = 'rated')
    and (rendered, said) not in (select (rendered, said) from votes where kind <> 'dissatisfied')
group by rendered, said

-- name: comparisons
-- Each graded text beside the best other text that answers the same prompt; where there is none, the best one of a prompt of the
-- same kin. difference: of their grades. is_tie: the grades say nothing.
create or replace temp table comparisons as
with keyed as (
    select *, len(votes) > 0 as is_graded, unnest(list_distinct([rendered, kin])) as key
    from grades
),
best as (
    select
        kind, contest, key,
        arg_max(struct_pack(interaction_id, rendered, said, value, is_graded), (value, is_graded, interaction_id)) as found
    from keyed
    group by kind, contest, key
),
compared as (
    select
        grades.*,
        case
            when same.found.said <> grades.said then same.found
            when kin.found.rendered <> grades.rendered then kin.found
        end as better
    from grades
    join best as same on same.kind = grades.kind and same.contest = grades.contest and same.key = grades.rendered
    join best as kin on kin.kind = grades.kind and kin.contest = grades.contest and kin.key = grades.kin
    where len(votes) > 0
)
select
    *, better.value - value as difference,
    better.is_graded and better.rendered = rendered and difference < $min_difference as is_tie
from compared
where better is not null

-- name: candidates
-- Pairs of two answers by source, by the answers' texts. edit: the better answer as a user wrote it. rating: how much better people's
-- thumbs call `chosen`. votes: whose choice it was, of ranked answers each line's; none of grades. A session that went on from another
-- answer than the one logged left that one behind.
create or replace temp table candidates as
with versions as (
    select prompt, answer, rendered, arg_max(struct_pack(interaction_id, said), (ts, interaction_id)) as last_one
    from answered
    group by prompt, answer, rendered
),
left_behind as (
    select
        worse.*, continued.message, continued.text, continued.said as went_on,
        struct_pack(worse.interaction_id, worse.voter, worse.ts, worse.place, worse.propensity) as vote
    from answered as worse
    join repeated_answers as continued on continued.session_id = worse.session_id and continued.prompt = worse.prompt
    where worse.answer <> continued.said and not worse.is_compared
        and (worse.session_id, worse.prompt, worse.answer) not in (select (session_id, prompt, said) from repeated_answers)
),
accepted as (
    select left_behind.*, versions.last_one, versions.rendered as chosen_rendered
    from left_behind
    left join versions on versions.prompt = left_behind.prompt and versions.answer = left_behind.went_on
    qualify row_number() over (
        partition by left_behind.interaction_id, went_on
        order by versions.rendered = left_behind.rendered desc nulls last, versions.last_one.interaction_id
    ) = 1
),
judged as (
    select rendered, said, max(quality) as quality, arg_max(interaction_id, (ts, interaction_id)) as interaction_id
    from answered
    join scores using (interaction_id)
    where quality is not null and corrected is null
    group by rendered, said
),
together as (
    select
        kind as reason, rendered, said as rejected_said, better.said as chosen_said, max(interaction_id) as rejected_id,
        max(better.interaction_id) as chosen_id, better.rendered as chosen_rendered, null::json as edit, flatten(list(votes)) as votes,
        least(1, avg(difference) / greatest(2, (select max(value) - min(value) from votes where kind <> 'dissatisfied'))) as margin
    from comparisons
    where difference >= $min_difference and (better.is_graded or value < 0)
    group by kind, rendered, said, better.said, better.rendered
    union all
    -- a log line that prefers a text to itself
    select 'ranked', rendered, said, said, interaction_id, interaction_id, rendered, null, [], null
    from grades
    where kind = 'ranked' and spread >= $min_difference
    union all
    select
        'regenerated', rendered, said, last_one.said, max(interaction_id), max(last_one.interaction_id), max(chosen_rendered), null,
        list(vote order by vote), null
    from accepted
    where last_one is not null
    group by rendered, said, last_one.said
    union all
    select
        'edited', rendered, said, went_on, max(interaction_id), null, rendered, arg_max(message, interaction_id),
        list(vote order by vote), null
    from accepted
    where last_one is null and trim(coalesce(text, '')) <> '' and not has_calls and not contains(message::varchar, '"tool_calls"')
    group by rendered, said, went_on
    union all
    select
        'edited', rendered, said, corrected, max(interaction_id), null, rendered, arg_max(completion::json, interaction_id),
        list(struct_pack(interaction_id, voter, ts, place, propensity) order by interaction_id), null
    from answered
    join (select interaction_id, completion from cleaned_interactions where replaced is not null) as edits using (interaction_id)
    where corrected is not null and not has_calls
    group by rendered, said, corrected
    union all
    select
        'graded', rendered, arg_min(said, (quality, interaction_id)) as worst, arg_max(said, (quality, interaction_id)),
        arg_min(interaction_id, (quality, interaction_id)), arg_max(interaction_id, (quality, interaction_id)), rendered, null, [],
        (max(quality) - min(quality)) / 9 as distance
    from judged
    group by rendered
    having count(*) > 1 and distance >= $min_difference / 2
),
rated as (
    select rendered, said, value from grades where kind = 'rated' and len(votes) > 0
)
select together.*, coalesce(better.value, 0) - coalesce(worse.value, 0) as rating
from together
left join rated as worse on worse.rendered = together.rendered and worse.said = rejected_said
left join rated as better on better.rendered = chosen_rendered and better.said = chosen_said
where reason in (select reason from confidences where confidence > 0)

-- name: opinions
-- What each source says of two texts that answer one prompt, with what thumbs say of the pairs of other sources.
create or replace temp table opinions as
select distinct reason, rendered, chosen_said, rejected_said
from candidates
union
select distinct 'rated', rendered, if(rating > 0, chosen_said, rejected_said), if(rating > 0, rejected_said, chosen_said)
from candidates
where rating <> 0 and reason <> 'rated'
