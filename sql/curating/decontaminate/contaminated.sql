-- Rows that contain evaluation items. Of an item's words, those do not count that two different messages have without a stretch of
-- the others; if none is left, all count. Fewer than $long words must all be there.
-- needs: finds
-- parameters: $long, $threshold
-- makes: temp table contaminated (interaction_id, suite, item_id, part, share)
create or replace temp table contaminated as
with told as (
    select distinct suite, item_id, part, message, unnest(words) as word
    from finds
    where words is not null
),
common as (
    select suite, item_id, part, list(word) as words
    from (select suite, item_id, part, word from told group by all having count(*) > 1)
    group by suite, item_id, part
),
judged as (
    select
        interaction_id, suite, item_id, part, share, finds.words, own - len(common.words) as own_left,
        len(list_filter(finds.words, lambda word: not list_contains(common.words, word))) as found
    from finds
    left join common using (suite, item_id, part)
)
select interaction_id, suite, item_id, part, if(words is null or coalesce(own_left, 0) = 0, share, found / own_left) as share
from judged
where words is null or coalesce(own_left, 0) = 0 or found / own_left >= if(own_left < $long, 1, $threshold)
