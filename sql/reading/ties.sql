-- name: feedback_by_id
-- Feedback with its most specific id: interaction, else request, trace, session. own_interaction_id is the id in the record
-- itself, without the id that an earlier run tied it to.
create or replace temp view feedback_by_id as
select
    * exclude (id_rank),
    id_rank,
    case id_rank when 1 then own_interaction_id when 2 then request_id when 3 then trace_id when 4 then session_id end as named_id
from (
    select
        *,
        case when tie is null then interaction_id else given_id end as own_interaction_id,
        case
            when own_interaction_id is not null then 1
            when request_id is not null then 2
            when trace_id is not null then 3
            when session_id is not null then 4
        end as id_rank
    from feedback
)

-- name: interaction_ids
-- All ids by which feedback may name each of `conversations`, and how specific they are (id_rank 1 is the most specific).
create or replace temp view interaction_ids as
select workload, interaction_id, 1 as id_rank, 'interaction' as tie, interaction_id as named_id from conversations
union all
select workload, interaction_id, 2, 'request', request_id from conversations where request_id is not null
union all
select workload, interaction_id, 2, if(starts_with(alias_id, 'answer:'), 'answer', 'gateway'), alias_id from conversations where alias_id is not null
union all
select workload, interaction_id, 3, 'trace', trace_id from conversations where trace_id is not null
union all
select workload, interaction_id, 4, 'session', session_id from conversations where session_id is not null

-- name: conversations
-- All interactions as read, of every workload, as input of reading/ties/interaction_ids.
create or replace temp view conversations as
select workload, interaction_id, request_id, alias_id, trace_id, session_id
from interactions

-- name: names_answers
-- Whether any edit says what the model said.
select count(*) > 0 as found
from feedback
where starts_with(request_id, 'answer:') or answer_id is not null

-- name: conversations_by_text
-- The view conversations, with an id of each answer by its text (resources/records/edits.py): the spaces of Python's str.split.
create or replace temp view conversations as
select workload, interaction_id, request_id, alias_id, trace_id, session_id
from interactions
union all
select
    workload, interaction_id, null,
    'answer:' || sha256(trim(regexp_replace(completion ->> '$.content', '[\x09-\x0d\x1c-\x20\x{85}\p{Z}]+', ' ', 'g'), ' ')),
    null, null
from interactions
where json_type(completion, '$.content') = 'VARCHAR'

-- name: ties
-- The interaction that each id of feedback belongs to: exactly one, several, none, or one of another workload. A request's own
-- id goes before the id that a gateway added.
create or replace temp table ties as
with named as (
    select workload, id_rank, named_id
    from feedback_by_id
    union
    select workload, 2, answer_id
    from feedback
    where answer_id is not null
),
found as (
    select
        named.workload, named.id_rank, named.named_id, candidates.tie, candidates.workload = named.workload as is_own,
        count(distinct candidates.interaction_id) as matches, min(candidates.interaction_id) as interaction_id
    from named
    inner join interaction_ids as candidates using (id_rank, named_id)
    group by all
),
preferred as (
    select *
    from found
    where is_own
    qualify row_number() over (partition by workload, id_rank, named_id order by tie = 'gateway') = 1
)
select
    workload, id_rank, named_id,
    case when preferred.matches = 1 then preferred.interaction_id end as interaction_id,
    case
        when preferred.matches = 1 then preferred.tie
        when preferred.matches > 1 then 'several'
        when others.named_id is not null then 'elsewhere'
        else 'unknown'
    end as tie
from named
left join preferred using (workload, id_rank, named_id)
left join (select distinct workload, id_rank, named_id from found where not is_own) as others using (workload, id_rank, named_id)

-- name: tied
-- Feedback with its tie, and whether that changed. What the model said ties an edit whose id is of no single interaction.
create or replace temp view tied as
select
    feedback_by_id.* exclude (own_interaction_id, id_rank, named_id, tied_to) replace (
        tied_to.interaction_id as interaction_id, feedback_by_id.own_interaction_id as given_id, tied_to.tie as tie
    ),
    struct_pack(interaction_id := feedback_by_id.interaction_id, tie := feedback_by_id.tie) is distinct from tied_to as has_changed
from (
    select
        feedback_by_id.*,
        if(
            ties.tie in ('several', 'unknown') and texts.interaction_id is not null,
            struct_pack(interaction_id := texts.interaction_id, tie := texts.tie),
            struct_pack(interaction_id := ties.interaction_id, tie := ties.tie)
        ) as tied_to
    from feedback_by_id
    left join ties using (workload, id_rank, named_id)
    left join ties as texts on texts.workload = feedback_by_id.workload and texts.id_rank = 2 and texts.named_id = answer_id
) as feedback_by_id

-- name: changed_days
-- Days with feedback whose tie changed.
select workload, dt
from tied
where has_changed
group by workload, dt
order by workload, dt

-- name: counts
-- Feedback of a workload by day and tie.
select dt, tie, count(*) as records
from tied
where workload = $workload
group by dt, tie
order by dt, tie

-- name: feedback_of_days
-- Feedback of some days with its new ties.
select * exclude (has_changed)
from tied
where workload = $workload and list_contains($days, dt)
