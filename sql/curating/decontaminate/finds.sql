-- Rows that may contain evaluation items: for each row and item, the share of the item's own words that the row's n-grams cover.
-- `grams` are the items' n-grams (start: the first word's position), `hits` the rows and messages where they occur, `own_words` the
-- words that no other item of the suite has. `words` (numbers of the covered own words) is null unless a stretch of them is missing
-- in a message that has other words as well: such a find may be of text that is the traffic's own.
-- needs: grams, hits, items, own_words
-- parameters: $stretch
-- makes: temp table finds (interaction_id, suite, item_id, part, share, own, words, message)
create or replace temp table finds as
with spans as (  -- they do not overlap; an n-gram's shorter ones are hits as well, so none is cut too early
    select
        row_id as interaction_id, item, message, message_words, start,
        least(start + size, coalesce(lead(start) over (partition by row_id, item order by start, size), start + size)) as stop
    from hits
    join grams using (gram)
),
own_covered as (
    select
        interaction_id, item, message, message_words, nth,
        nth - coalesce(lag(nth) over (partition by interaction_id, item order by nth), -1) - 1 as missing_before
    from (select interaction_id, item, message, message_words, unnest(range(start, stop)) as word from spans)
    join own_words using (item, word)
),
shares as (
    select
        interaction_id, item, list(nth order by nth) as words, count(*) as found, max(message) as message,
        max(message_words) as message_words, max(missing_before) as missing, max(nth) as last
    from own_covered
    group by interaction_id, item
)
select
    interaction_id, suite, item_id, part, found / own as share, own,
    case when greatest(missing, own - 1 - last) >= $stretch and message_words - found > $stretch then words end as words,
    message
from shares
join items using (item)
where found / own >= needed
