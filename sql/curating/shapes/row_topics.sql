-- What each conversation asks for: the topic of its words that tells most; before there are topics, its first word. One that says
-- nothing takes what its session asked before, else after it.
-- needs: asked_words, conversations, topics
-- makes: temp table row_topics (interaction_id, topic)
create or replace temp table row_topics as
with named as (
    select
        interaction_id,
        case when (select count(*) from topics) = 0 then arg_min(word, (place, word)) else coalesce(arg_min(name, rank), 'other') end as topic
    from asked_words left join topics using (word)
    group by interaction_id
)
select
    interaction_id,
    coalesce(
        topic,
        last_value(topic ignore nulls) over (partition by session_id order by ts, interaction_id),
        first_value(topic ignore nulls) over (
            partition by session_id order by ts, interaction_id rows between unbounded preceding and unbounded following
        ),
        ''
    ) as topic
from conversations
left join named using (interaction_id)
