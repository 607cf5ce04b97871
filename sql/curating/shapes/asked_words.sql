-- The words of what each conversation asks for: of its first message of a user that says more than a greeting, with the place of
-- each. Parts with digits, marks of addresses or paths are names and numbers of one request, and placeholders: they are left out.
-- needs: plain_words, texts
-- makes: temp table asked_words (interaction_id, word, place)
create or replace temp table asked_words as
with said as (
    select interaction_id, generate_subscripts(said, 1) as turn, unnest(said) as text from texts
),
words as (
    select
        interaction_id, turn,
        unnest(list_distinct(regexp_extract_all(regexp_replace(lower(text), '\S*[\d_@/\\]\S*', ' ', 'g'), '\pL{3,}'))) as word,
        lower(text) as text
    from said
),
telling as (
    select interaction_id, turn, word, instr(text, word) as place from words anti join plain_words using (word)
),
first_telling as (
    select interaction_id, min(turn) as turn from telling group by interaction_id
)
select interaction_id, word, place from telling semi join first_telling using (interaction_id, turn)
