-- Pairs of sessions that share a text and must be in one split. A text in more than eight sessions is a stock phrase
-- ("Hello, how can I help?") and links nothing; otherwise one greeting would put all traffic into one split.
-- needs: decided, sessions
-- makes: rows (a, b)
with copies as (
    select distinct decided.best, sessions.place
    from decided
    join sessions using (session_id)
    where decided.rule in ('kept', 'exact_duplicate', 'near_duplicate', 'semantic_duplicate')
),
shared as (
    select best, min(place) as first, list(place) as places
    from copies
    group by best
    having count(*) between 2 and 8
)
select distinct first as a, other as b
from (select first, unnest(places) as other from shared)
where first <> other
