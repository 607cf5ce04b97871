-- Drops answers that loop: one pattern repeated, or Gopher's shares of repeated text.
-- needs: measured
-- parameters: $drop_repeated_patterns, $drop_repetitive, $duplicate_10grams, $duplicate_5grams, $duplicate_6grams,
--     $duplicate_7grams, $duplicate_8grams, $duplicate_9grams, $duplicate_line_characters, $duplicate_lines,
--     $duplicate_paragraph_characters, $duplicate_paragraphs, $repeats, $top_2gram, $top_3gram, $top_4gram
-- makes: temp table failed_repetition (interaction_id, place, rule, detail)
create or replace temp table failed_repetition as
with passed as (
    select
        interaction_id, repeats, repeats_of,
        repeats >= $repeats * patience as is_loop,   -- arrays, tables, code and logs repeat by nature
        [
            {name: 'duplicate_lines', share: duplicate_lines, most: $duplicate_lines},
            {name: 'duplicate_paragraphs', share: duplicate_paragraphs, most: $duplicate_paragraphs},
            {name: 'duplicate_line_characters', share: duplicate_line_characters, most: $duplicate_line_characters},
            {name: 'duplicate_paragraph_characters', share: duplicate_paragraph_characters,
             most: $duplicate_paragraph_characters},
            {name: 'top_2gram', share: top_2gram, most: $top_2gram},
            {name: 'top_3gram', share: top_3gram, most: $top_3gram},
            {name: 'top_4gram', share: top_4gram, most: $top_4gram},
            {name: 'duplicate_5grams', share: duplicate_5grams, most: $duplicate_5grams},
            {name: 'duplicate_6grams', share: duplicate_6grams, most: $duplicate_6grams},
            {name: 'duplicate_7grams', share: duplicate_7grams, most: $duplicate_7grams},
            {name: 'duplicate_8grams', share: duplicate_8grams, most: $duplicate_8grams},
            {name: 'duplicate_9grams', share: duplicate_9grams, most: $duplicate_9grams},
            {name: 'duplicate_10grams', share: duplicate_10grams, most: $duplicate_10grams}
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
    if(is_loop, loop, printf('%s %.2f, at most %.2f', worst.name, worst.share, worst.most)) as detail
from broken
where is_loop or worst is not null
