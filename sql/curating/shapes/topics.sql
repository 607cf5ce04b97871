-- What people ask for, as words that many of them share: each topic is a word, named with the two words that go with it most.
-- A word counts by how much it tells: p ln(p)^2 of the share p of people who say it, which is highest at one in seven. A word
-- that answers hold as often whether it was asked or not is a small word of its language. A topic, and each word of its name, was said by
-- $least people or more; fewer than $enough people have no topics.
-- needs: asked_words, conversations, texts
-- parameters: $enough, $least, $most
-- makes: rows (word, name, rank)
with people as (
    select interaction_id, coalesce(user_hash, session_id, interaction_id) as person from conversations
),
whole as (
    select count(distinct person) as people, count(*) as requests from people semi join asked_words using (interaction_id)
),
said as (
    select word, count(distinct person) as said_by, count(*) as requests
    from asked_words join people using (interaction_id)
    group by word
    having said_by >= $least
),
answer_words as (
    select interaction_id, unnest(list_distinct(regexp_extract_all(lower(answer_text[1:2000]), '\pL{3,}'))) as word from texts
),
answered as (
    select word, count(*) as requests from answer_words semi join said using (word) group by word
),
repeated as (
    select word, count(*) as requests
    from answer_words semi join asked_words using (interaction_id, word)
    group by word
),
telling as (
    select said.word, said_by / whole.people as share, said_by
    from said
    cross join whole
    left join answered using (word)
    left join repeated using (word)
    where
        said_by * 2 <= whole.people
        and not (
            coalesce(answered.requests, 0) * 20 >= whole.requests
            and coalesce(repeated.requests, 0) / said.requests < 1.3 * answered.requests / whole.requests
        )
),
ranked as (
    select word, share, row_number() over (order by share * ln(share) ** 2 desc, word) as rank from telling
),
best as (
    select interaction_id, arg_min(word, rank) as word from asked_words join ranked using (word) group by interaction_id
),
topics as (
    select best.word, count(distinct person) as asked_by
    from best join people using (interaction_id) cross join whole
    group by best.word, whole.people
    having asked_by >= greatest($least, whole.people / 50) and whole.people >= $enough
    order by asked_by desc, best.word
    limit $most
),
asked_for as (
    select interaction_id, arg_min(word, rank) as topic
    from asked_words join ranked using (word) semi join topics using (word)
    group by interaction_id
),
beside as (
    select topic, asked_words.word, count(distinct person) as said_by
    from asked_for join asked_words using (interaction_id) join people using (interaction_id)
    where asked_words.word <> topic
    group by topic, asked_words.word
    having said_by >= $least
),
sizes as (
    select topic, count(distinct person) as people from asked_for join people using (interaction_id) group by topic
),
companions as (
    select
        topic, word,
        row_number() over (partition by topic order by beside.said_by * ln(beside.said_by / sizes.people / share) desc, word) as place
    from beside join sizes using (topic) join ranked using (word)
    where beside.said_by / sizes.people > share
),
named as (
    select
        ranked.word as topic, ranked.rank,
        concat_ws(' ', ranked.word, string_agg(companions.word, ' ' order by place) filter (where place <= 2)) as name
    from topics
    join ranked using (word)
    left join companions on companions.topic = topics.word
    group by ranked.word, ranked.rank
)
select topic as word, name, rank from named
union all
-- a request that has another word of the name alone is of the topic too
select word, name, named.rank + 1000 as rank
from companions join named using (topic) anti join topics using (word)
where place <= 2
order by rank, word
