-- One row for each conversation: the texts its facts are taken from.
-- Near-duplicates are judged by `new_turn`, what is NEW in this request (the messages after the last answer, but no system
-- prompt), and by `answer`. With the history in it, two turns of one conversation would be alike for what they
-- share; with the system prompt in it, so would all rows of a product.
create or replace temp table texts as
with placed as (
    select
        *,
        coalesce(
            max(position) filter (where role = 'assistant' and not is_answer) over (partition by interaction_id), 0
        ) as last_answer
    from messages
),
parts as (
    select
        interaction_id,
        string_agg(said, ' ' order by position)
            filter (where not is_answer and position > last_answer and role not in ('system', 'developer')) as new_turn,
        arg_min(role, position)
            filter (where not is_answer and position > last_answer and role not in ('system', 'developer')) as new_role,
        string_agg(said, ' ' order by position) filter (where role in ('system', 'developer')) as instructions,
        max(said) filter (where is_answer) as answer,
        sum(length(said)) filter (where not is_answer) as prompt_characters,
        count(*) filter (where not is_answer) as prompt_messages,
        sha256(string_agg(identity, ' ' order by position)) as normalised_sha256
    from placed
    group by interaction_id
)
select
    interaction_id, new_turn, new_role, instructions, answer, normalised_sha256,
    coalesce(prompt_characters, 0) as prompt_characters,
    coalesce(length(answer), 0) as completion_characters,
    prompt_messages
from parts
