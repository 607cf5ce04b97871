-- What each session of a day counts in each column of the tests. `categories` names the column (place) of each category of each
-- test, hashed as in categories.sql; the category '' is all others. A judge's score of 1 to 10 counts as points and as missing points.
-- needs: categories, sessions, traffic
-- parameters: $answer_edges, $prompt_edges
-- makes: rows (number, place, amount)
with marks as (
    select session, 'prompt_shapes' as test, prompt_shape as category, 1.0 as amount from traffic
    union all
    select session, 'language', language, 1 from traffic
    union all
    select session, 'tools', unnest(tools), 1 from traffic
    union all
    select session, 'prompt_length', len(list_filter(cast($prompt_edges as bigint[]), lambda edge: edge < prompt_characters))::varchar, 1
    from traffic
    union all
    select
        session, 'answer_length', len(list_filter(cast($answer_edges as bigint[]), lambda edge: edge < completion_characters))::varchar, 1
    from traffic
    union all
    select session, 'errors', if(is_error, 'yes', 'no'), 1 from traffic
    union all
    select session, 'broken_answers', if(is_broken, 'yes', 'no'), 1 from traffic
    union all
    select session, 'refusals', if(is_refused, 'yes', 'no'), 1 from traffic
    union all
    select session, 'feedback_given', if(opinion is null, 'no', 'yes'), 1 from traffic
    union all
    select session, 'bad_feedback', opinion, 1 from traffic where opinion is not null
    union all
    select session, 'quality', 'points', score - 1 from traffic where score is not null
    union all
    select session, 'quality', 'missing points', 10 - score from traffic where score is not null
),
counted as (
    select
        session, test, sum(amount)::double as amount,
        case
            when category is null then ''
            when test in ('prompt_shapes', 'language', 'tools') then left(sha256(category), 16)
            else category
        end as category
    from marks
    group by all
)
select number, coalesce(known.place, other.place) as place, amount
from counted
join sessions using (session)
left join categories as known on known.test = counted.test and known.category = counted.category
left join categories as other on other.test = counted.test and other.category = ''
where coalesce(known.place, other.place) is not null
