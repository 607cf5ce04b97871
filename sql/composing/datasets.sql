-- name: split_rows
-- Rows of one split, in shuffled order. A row that is repeated stands in it several times; its further copies have the reason
-- `repeated`.
with copied as (
    select *, unnest(range(copies)) as copy
    from sampled
    where split = $split and copies > 0
)
select
    row_id, origin, source, session_id, workload, ts, messages, tools, request, text, token_ids, labels,
    prompt_shape, content_sha256, interaction_ids, quality, difficulty, split, weight,
    if(copy > 0, 'repeated', reason) as reason, synthetic, language
from copied
join sampled_texts using (row_id, origin)
order by if(copy > 0, md5(draw || copy), draw), row_id

-- name: decisions
-- The decision on every curated row and every seed: in the dataset, contained in a longer row, left out, or sampled out.
with decided as (
    select workload, dt, interaction_id, null as seed from curated
    union all
    select (select any_value(workload) from curated), null, row_id, source from seeds
),
outcomes as (
    select
        decided.*, contained_rows.container_id, dropped_rows.rule as dropped, dropped_rows.kept_id as dropped_for,
        dropped_rows.detail, sampled.split, sampled.source, sampled.cluster, sampled.quota, sampled.source_quota,
        coalesce(sampled.copies, 0) > 0 as chosen
    from decided
    left join contained_rows using (interaction_id)
    left join dropped_rows on dropped_rows.row_id = coalesce(contained_rows.container_id, decided.interaction_id)
    left join sampled on sampled.row_id = coalesce(contained_rows.container_id, decided.interaction_id)
)
select
    workload, 'dataset' as stage, $version as version, dt, interaction_id,
    case
        when dropped is not null then dropped
        when not chosen and source_quota = 0 then 'source_not_in_mix'
        when not chosen then 'sampled_out'
        when container_id is not null then 'subsumed_by_later_turn'
        else 'kept'
    end as rule, chosen as kept, case
        when dropped is not null then detail
        when chosen then split
        when source_quota > 0 and cluster <> '' then printf('%s gave %d rows', cluster, quota)
        when source_quota > 0 then printf('%s gave %d rows', source, quota)
    end as detail,
    coalesce(dropped_for, container_id) as kept_id
from outcomes
order by interaction_id

-- name: decision_counts
-- Number of curated rows by rule.
select rule, count(*)::bigint as rows from decisions group by rule order by rule

-- name: count_curated
-- Number of curated rows and seeds.
select (select count(*) from curated) + (select count(*) from seeds) as rows

-- name: conversations
-- Curated rows and seeds whose repeated turns are searched. A seed's answer is its last message.
create or replace temp view conversations as
select interaction_id, messages, completion from curated
union all
select row_id, messages, null from seeds

-- name: prefixes
-- Every point of a conversation where the assistant has just answered, with a hash of all messages up to there. is_answer: it is
-- the row's own answer. Seeds have no session. Clients repeat a history with every turn, so equal messages are normalised once.
create or replace temp table prefixes as
with conversations_read as (
    select
        interaction_id, coalesce(try_cast(messages as json[]), []) as prompt,
        if(try(json_type(completion)) = 'OBJECT', cast(completion as json), null) as answer
    from conversations
),
spread as (
    select interaction_id, unnest(prompt) as message, generate_subscripts(prompt, 1) as position, false as is_answer
    from conversations_read
    union all
    select interaction_id, answer, len(prompt) + 1, true
    from conversations_read
    where answer is not null
),
distinct_messages as (
    select message, is_answer, list(struct_pack(interaction_id, position)) as places
    from spread
    group by message, is_answer
),
parsed as (
    select
        places, is_answer, json_transform(
            message, '{"role": "VARCHAR", "content": "JSON", "tool_calls": "JSON", "function_call": "JSON"}'
        ) as message
    from distinct_messages
),
told as (
    select
        places, is_answer, if(is_answer, 'assistant', message.role) as role, message.content as content,
        one_line(message_text(message)) as line
    from parsed
),
identified as (
    select unnest(places) as place, is_answer, role, message_identity(role, line, content) as identity
    from told
),
hashed as (
    select
        place.interaction_id as interaction_id, place.position as position, is_answer, role,
        md5(string_agg(identity, '') over (partition by place.interaction_id order by place.position)) as prefix_hash
    from identified
)
select curated.session_id, hashed.interaction_id, hashed.position, hashed.is_answer, hashed.prefix_hash
from hashed
left join curated using (interaction_id)
where hashed.role = 'assistant'

-- name: contained_rows
-- Rows whose whole conversation is the beginning of a later row of their session. The longest such row contains them (ties: the
-- newest, then the smallest id); `position` is where their answer is in it.
create or replace temp table contained_rows as
with answers as (
    select * from prefixes where is_answer
),
containments as (
    select answers.interaction_id, container.interaction_id as container_id, container.position
    from answers
    join prefixes as container using (session_id, prefix_hash)
    where not container.is_answer and container.interaction_id <> answers.interaction_id
),
ranked as (
    select
        containments.*,
        row_number() over (
            partition by containments.interaction_id
            order by ends.position desc, curated.ts desc nulls last, container_id
        ) as choice
    from containments
    join answers as ends on ends.interaction_id = container_id
    join curated on curated.interaction_id = container_id
    where container_id not in (select interaction_id from containments)
)
select interaction_id, container_id, position from ranked where choice = 1

-- name: training_conversations
-- Conversations to train on: rows that no other row contains, without their texts (sampled_texts). interaction_ids: every
-- interaction whose answer the row trains on. Where several rows end in the same message (exact copies that curation let
-- through), the first is listed in its place and the others come after the row's own id.
create or replace temp table training_conversations as
with carried_rows as (
    select container_id, position, list(interaction_id order by interaction_id) as carried_ids
    from contained_rows
    group by container_id, position
),
gathered as (
    select
        container_id as interaction_id,
        list(carried_ids[1] order by position) as carried,
        flatten(list(carried_ids[2:] order by position)) as copies
    from carried_rows
    group by container_id
)
select
    interaction_id, source, session_id, user_hash, workload, ts, prompt_shape, content_sha256, language, quality, difficulty,
    list_concat(list_append(coalesce(carried, []), interaction_id), coalesce(copies, [])) as interaction_ids
from curated
left join gathered using (interaction_id)
where interaction_id not in (select interaction_id from contained_rows)

-- name: branches_of_held_out
-- Rows that begin with the same turns and answers as a row of a more protected split (test, then validation, then training), or
-- are the beginning of one: branches and copies of a held-out conversation. A beginning in more than eight sessions is a stock
-- phrase ("Hello, how can I help?") and counts only where it is one of the two conversations as a whole.
create or replace temp table branches_of_held_out as
with placed as (
    select
        prefixes.prefix_hash, prefixes.session_id, assigned_splits.row_id, prefixes.is_answer,
        case assigned_splits.split when 'test' then 0 when 'validation' then 1 else 2 end as place
    from prefixes
    join assigned_splits on assigned_splits.row_id = prefixes.interaction_id
    where assigned_splits.origin = 'interaction'
),
held as (
    select
        prefix_hash, min(place) as place, min(row_id) as held_id, bool_or(is_answer) as whole
    from placed
    where place < 2
    group by prefix_hash
),
suspects as (
    select placed.*, held.held_id, held.whole, placed.place > held.place as is_lower
    from placed
    join held using (prefix_hash)
),
spread as (
    select prefix_hash, count(distinct session_id) as sessions
    from suspects
    group by prefix_hash
),
branches as (
    select row_id, held_id
    from suspects
    join spread using (prefix_hash)
    where is_lower and (sessions <= 8 or is_answer or whole)
    union all
    select lower.row_id, upper.row_id
    from assigned_splits as lower
    join assigned_splits as upper
        on upper.content_sha256 = lower.content_sha256 and upper.split <> lower.split
    where lower.origin = 'interaction' and upper.split <> 'train' and (lower.split = 'train' or upper.split = 'test')
)
select row_id, 'shares_turns_with_held_out' as rule, min(held_id) as held_id
from branches
group by row_id

-- name: repeated_seeds
-- Seeds that repeat traffic: the whole seed is the beginning of a logged conversation, or its text or token ids are those of a
-- row; or they were made from an interaction that is in this dataset itself.
create or replace temp table repeated_seeds as
with last_answers as (
    select interaction_id as row_id, arg_max(prefix_hash, position) as prefix_hash
    from prefixes
    where interaction_id in (select row_id from seeds)
    group by interaction_id
),
found as (
    select last_answers.row_id, prefixes.interaction_id as held_id
    from last_answers
    join prefixes using (prefix_hash)
    where prefixes.interaction_id in (select interaction_id from curated)
    union all
    select seeds.row_id, curated.interaction_id from seeds join curated on curated.text = seeds.text
    union all
    select seeds.row_id, curated.interaction_id
    from seeds
    join curated on curated.token_ids = seeds.token_ids and curated.labels = seeds.labels
    union all
    select origins.row_id, curated.interaction_id
    from (select row_id, unnest(interaction_ids) as interaction_id from seeds) as origins
    join curated using (interaction_id)
)
select row_id, 'duplicate_of_traffic' as rule, min(held_id) as held_id
from found
group by row_id

-- name: unwanted_rows
-- Rows of traffic for training that a named dataset does not ask for, each by the first bound that it misses. A row without a
-- score misses a bound on it. Held-out rows and seeds stay, but rated answers of `millrace chat` ($chats) are held out where there is
-- nothing else: they are not what users ask.
create or replace temp table unwanted_rows as
with missed as (
    select
        assigned_splits.row_id,
        case
            when not coalesce(curated.dt >= $first_day::date, $first_day is null) then 'before_first_day'
            when not coalesce(curated.dt <= $last_day::date, $last_day is null) then 'after_last_day'
            when $languages is not null and not coalesce(list_contains($languages::varchar[], curated.language), false)
                then 'language_not_asked_for'
            when not coalesce(curated.quality >= $min_quality::double, $min_quality is null) then 'below_min_quality'
            when not coalesce(curated.difficulty >= $min_difficulty::double, $min_difficulty is null) then 'below_min_difficulty'
            when not coalesce(curated.feedback >= $min_feedback::double, $min_feedback is null) then 'below_min_feedback'
        end as rule
    from assigned_splits
    join curated on curated.interaction_id = assigned_splits.row_id
    where assigned_splits.origin = 'interaction' and assigned_splits.split = 'train'
)
select row_id, rule
from missed
where rule is not null
union all
select row_id, 'rated_chat'
from assigned_splits
where source = $chats and split in (
    select split from assigned_splits where split <> 'train' and source is distinct from $chats
)

-- name: dropped_rows
-- One reason for each row that the dataset leaves out before sampling, by the first rule that applies. kept_id: the row that the
-- dataset has instead (a conversation is named by its longest row).
create or replace temp table dropped_rows as
with found as (
    select row_id, 1 as choice, rule, held_id, null::double as similarity from repeated_seeds
    union all
    select row_id, 2, rule, held_id, similarity from near_copies
    union all
    select row_id, 3, rule, held_id, null from branches_of_held_out
    union all
    select row_id, 4, rule, null, null from unwanted_rows
),
first as (
    select row_id, arg_min(struct_pack(rule, held_id, similarity), (choice, held_id)) as chosen
    from found
    group by row_id
)
select
    first.row_id, chosen.rule as rule, coalesce(contained_rows.container_id, chosen.held_id) as kept_id,
    case when chosen.similarity is not null then printf('similarity %.2f', chosen.similarity) end as detail
from first
left join contained_rows on contained_rows.interaction_id = chosen.held_id

-- name: clustered
-- Rows with the cluster that their quota is computed for: the prompt shape, or one cluster where nothing is balanced.
create or replace temp table clustered as
select *, case when $balance = 'none' then '' else coalesce(prompt_shape, '') end as cluster
from assigned_splits
where row_id not in (select row_id from dropped_rows)

-- name: sampled
-- How often each row is in the dataset (`copies`): once if it is held out, else as often as its cluster's quota gives, drawn by
-- hash of its id and the seed. weight: rows in the split for each row that its cluster has.
create or replace temp table sampled as
with shuffled as (
    select *, md5($seed || ':row:' || row_id) as draw from clustered
),
ranked as (
    select
        *,
        row_number() over (partition by split, source, synthetic, cluster order by draw, row_id) as turn,
        count(*) over (partition by split, source, synthetic, cluster) as cluster_rows
    from shuffled
)
select
    ranked.* exclude (turn, cluster_rows),
    if(split = 'train', quotas.copies + if(turn <= quotas.more, 1, 0), 1) as copies,
    quotas.copies * cluster_rows + quotas.more as quota,
    quotas.source_rows as source_quota,
    if(split = 'train', (quotas.copies * cluster_rows + quotas.more) / cluster_rows, 1.0) as weight,
    case
        when split <> 'train' then 'held_out'
        when quotas.copies * cluster_rows + quotas.more < cluster_rows then 'sampled'
        else 'all'
    end as reason
from ranked
left join quotas using (source, synthetic, cluster)

-- name: sampled_texts
-- What the rows of the dataset say. An assistant message has weight 1 if its own interaction was kept by curation, else 0
-- (context only). Reasoning that the model gave with an earlier answer and that later requests leave out is learnt with that
-- answer and is no part of the later context (learnt_reasoning); so is the request of that answer where it differs
-- (learnt_request). An answer that ended at the token limit has learnt_cut.
create or replace temp table sampled_texts as
with chosen as (
    select row_id, origin from sampled where copies > 0
),
carried_rows as (
    select container_id, position, min(interaction_id) as carried_id
    from contained_rows
    where container_id in (select row_id from chosen)
    group by container_id, position
),
remarks as (
    select
        container_id as interaction_id,
        map_from_entries(list(struct_pack(k := carried_rows.position, v := json_object(
            'weight', 1,
            'learnt_reasoning', nullif(trim(said.reasoning), ''),
            'learnt_cut', nullif(said.was_cut, false),
            'learnt_request', case when said.request is distinct from containing.request then
                coalesce(cast(said.request as json), '{}'::json) end
        )))) as by_position
    from carried_rows
    join curated as containing on containing.interaction_id = carried_rows.container_id
    join curated as said on said.interaction_id = carried_rows.carried_id
    group by container_id
)
select
    interaction_id as row_id, 'interaction' as origin,
    case
        when text is not null or token_ids is not null then '[]'
        else cast(to_json(list_append(
            list_transform(cast(messages as json[]), lambda message, position: case
                when message ->> '$.role' = 'assistant' then json_merge_patch(message, coalesce(
                    by_position[position], json_object('weight', 0, 'learnt_reasoning', null, 'learnt_cut', null,
                                                       'learnt_request', null)))
                else message
            end),
            json_merge_patch(cast(completion as json), json_object(
                'role', 'assistant', 'weight', 1, 'reasoning_content', nullif(trim(reasoning), ''),
                'learnt_cut', nullif(was_cut, false)
            ))
        )) as varchar)
    end as messages,
    tools, request, text, token_ids, labels
from curated
left join remarks using (interaction_id)
where interaction_id in (select row_id from chosen where origin = 'interaction')
union all
select row_id, 'seed', messages, tools, request, text, token_ids, labels
from seeds
where row_id in (select row_id from chosen where origin = 'seed')

-- name: report
-- Rows and sessions of each split, by source and reason.
select
    split, source, origin, synthetic, reason, count(*)::bigint as rows, (sum(copies) - count(*))::bigint as repeats,
    count(distinct session_id)::bigint as sessions
from sampled
where copies > 0
group by all
order by all
