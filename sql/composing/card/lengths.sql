-- Rows and lengths in characters of each split: of messages as JSON, or of plain text. Token ids have no characters.
-- needs: card_rows
-- makes: rows (split, rows, characters, median, p95, longest)
with measured as (
    select split, length(coalesce(text, messages))::bigint as characters
    from card_rows
)
select
    split, count(*)::bigint as rows, sum(characters)::bigint as characters,
    quantile_disc(characters, 0.5)::bigint as median, quantile_disc(characters, 0.95)::bigint as p95,
    max(characters)::bigint as longest
from measured
group by split
order by list_position(['train', 'validation', 'test'], split)
