-- Rows that contain evaluation items: for each row and item, the share of the item's words that the row's n-grams cover.
-- `grams` are the items' n-grams (start: the first word's position), `hits` the rows where they occur. A short item has one
-- gram, itself, and `whole` where it must be a message of its own.
-- needs: grams, hits, items
-- parameters: $threshold
-- makes: temp table contaminated (interaction_id, suite, item_id, part, share)
create or replace temp table contaminated as
with row_hits as (
    select distinct row_id as interaction_id, gram
    from hits
),
covered as (
    select
        row_hits.interaction_id, grams.item, grams.words, grams.size, grams.start,
        lead(grams.start) over (
            partition by row_hits.interaction_id, grams.item, grams.size order by grams.start
        ) as next_start
    from row_hits
    join grams using (gram)
),
coverage as (
    select
        interaction_id, item, size,
        sum(least(size, coalesce(next_start - start, size))) / any_value(words) as share
    from covered
    group by interaction_id, item, size
),
best as (
    select interaction_id, item, max(share) as share
    from coverage
    group by interaction_id, item
)
select best.interaction_id, items.suite, items.item_id, items.part, best.share
from best
join items using (item)
where best.share >= $threshold
