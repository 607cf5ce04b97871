-- Drops answers that loop: one pattern repeated, or Gopher's shares of repeated text.
-- needs: measured
-- parameters: $drop_repeated_patterns, $drop_repetitive, $repeats
-- makes: temp table failed_repetition (interaction_id, place, rule, detail)
create or replace temp table failed_repetition as
with passed as (
    select
        interaction_id, repeats, repeats_of,
        repeats >= $repeats * patience as is_loop,   -- arrays, tables, code and logs repeat by nature
        [
            {name: 'duplicate_lines', share: duplicate_lines, most: 0.5},
            {name: 'duplicate_paragraphs', share: duplicate_paragraphs, most: 0.5},
            {name: 'duplicate_line_characters', share: duplicate_line_characters, most: 0.5},
            {name: 'duplicate_paragraph_characters', share: duplicate_paragraph_characters, most: 0.5},
            {name: 'top_2gram', share: top_2gram, most: 0.2},
            {name: 'top_3gram', share: top_3gram, most: 0.18},
            {name: 'top_4gram', share: top_4gram, most: 0.16},
            {name: 'duplicate_5grams', share: duplicate_5grams, most: 0.5},
            {name: 'duplicate_6grams', share: duplicate_6grams, most: 0.5},
            {name: 'duplicate_7grams', share: duplicate_7grams, most: 0.5},
            {name: 'duplicate_8grams', share: duplicate_8grams, most: 0.5},
            {name: 'duplicate_9grams', share: duplicate_9grams, most: 0.5},
            {name: 'duplicate_10grams', share: duplicate_10grams, most: 0.5}
        ] as shares
    from measured
    where repeats >= $repeats or duplicate_lines is not null
),
broken as (
    select
        interaction_id,
        $drop_repeated_patterns and is_loop as is_loop,
        printf('%s %d times in a row', if(repeats_of > 0, repeats_of || ' words', 'the same signs'), repeats) as loop,
        case when $drop_repetitive then list_filter(shares, lambda each: each.share > each.most)[1] end as worst
    from passed
)
select
    interaction_id, 4 as place,
    if(is_loop, 'repeated_pattern', 'repetitive') as rule,
    if(is_loop, loop, printf('%s %.2f, at most %.2f', worst.name, worst.share, worst.most::double)) as detail
from broken
where is_loop or worst is not null
