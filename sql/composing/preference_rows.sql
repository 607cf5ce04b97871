-- name: split_places
-- The most protected split of all sessions in which a text answers a prompt.
create or replace temp table split_places as
select rendered, said, min(place) as place
from answered
group by rendered, said

-- name: preference_rows
-- Preference rows with their split: the most protected one of both answers, in all sessions that have them. Of a held-out row,
-- interaction_ids leaves out those of sessions that are less protected: they may be in training elsewhere.
create or replace temp table preference_rows as
with placed as (
    select
        decided_pairs.*, case when origin = 'teacher' then 3 else least(better.place, worse.place) end as place
    from decided_pairs
    left join split_places as worse on worse.rendered = decided_pairs.rendered and worse.said = rejected_said
    left join split_places as better on better.rendered = decided_pairs.rendered and better.said = chosen_said
    where rule is null
)
select
    row_id, origin, source, session_id, $workload as workload, ts, prompt, tools, request, '[' || chosen || ']' as chosen,
    '[' || rejected || ']' as rejected, chosen_id, rejected_id, coalesce(interaction_ids, list_sort(list_transform(
        list_filter(behind, lambda each: each.place = placed.place), lambda each: each.interaction_id
    ))) as interaction_ids, sha256(prompt || chr(1) || chosen || chr(1) || rejected) as content_sha256, chosen_feedback, rejected_feedback,
    ['test', 'validation', 'train'][place] as split, weight, reason, confidence, margin, origin = 'teacher' as synthetic, language
from placed

-- name: unpaired_rows
-- Answers with a verdict of their own, with the most protected split of the sessions that have them.
create or replace temp table unpaired_rows as
with placed as (
    select decided_verdicts.*, place
    from decided_verdicts
    join split_places using (rendered, said)
    where rule is null
)
select
    'answer:' || left(md5(reason || rendered || said), 24) as row_id, 'interaction' as origin, source, session_id,
    $workload as workload, ts, messages as prompt, tools, request,
    '[' || answer_message(cast(coalesce(replaced, completion) as json), reasoning)::varchar || ']' as answer, desirable, value,
    list_transform(
        list_filter(behind, lambda each: each.place = placed.place), lambda each: each.interaction_id
    ) as interaction_ids, sha256(messages || chr(1) || answer) as content_sha256, ['test', 'validation', 'train'][place] as split, weight,
    reason, confidence, false as synthetic, language
from placed
join cleaned_interactions using (interaction_id)

-- name: pairs_of_split
-- Pairs of one split in shuffled order; of training pairs the first $max_rows. The mean weight of training pairs is 1.
select * replace (weight / coalesce((select avg(weight) from preference_rows where split = 'train'), 1) as weight)
from preference_rows
where split = $split
qualify $split <> 'train' or row_number() over (order by md5($seed || ':row:' || row_id), row_id) <= $max_rows
order by md5($seed || ':row:' || row_id), row_id

-- name: unpaired_of_split
-- Answers with a verdict of one split, ordered, bounded and weighed as pairs are.
select * replace (weight / coalesce((select avg(weight) from unpaired_rows where split = 'train'), 1) as weight)
from unpaired_rows
where split = $split
qualify $split <> 'train' or row_number() over (order by md5($seed || ':row:' || row_id), row_id) <= $max_rows
order by md5($seed || ':row:' || row_id), row_id

-- name: drops
-- Pairs and verdicts that are left out, by rule.
select 'pairs' as what, rule, count(*)::bigint as rows
from decided_pairs
where rule is not null
group by rule
union all
select 'verdicts', rule, count(*)
from decided_verdicts
where rule is not null
group by rule
order by what, rows desc, rule

-- name: ties
-- Comparisons of two graded answers to one prompt, and how many of them are ties.
select count(*)::bigint as comparisons, count(*) filter (is_tie)::bigint as ties
from comparisons
where better.is_graded and better.rendered = rendered

-- name: agreement
-- Pairs of which two sources have an opinion, and how many of these agree.
select
    one.reason as one, other.reason as other, count(*)::bigint as pairs,
    count(*) filter (one.chosen_said = other.chosen_said)::bigint as agree
from opinions as one
join opinions as other
    on other.rendered = one.rendered and one.reason < other.reason
    and least(other.chosen_said, other.rejected_said) = least(one.chosen_said, one.rejected_said)
    and greatest(other.chosen_said, other.rejected_said) = greatest(one.chosen_said, one.rejected_said)
group by one.reason, other.reason
order by one.reason, other.reason
