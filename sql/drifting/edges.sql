-- Lengths in characters that cut the rows of the vocabulary days in ten parts of about the same size.
-- needs: traffic
-- makes: rows (prompt_length, answer_length)
select
    list_sort(list_distinct(quantile_disc(prompt_characters, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]))) as prompt_length,
    list_sort(list_distinct(quantile_disc(completion_characters, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])))
        as answer_length
from traffic
