-- name: eval_parts
-- Parts of evaluation items to search for: prompts and answers. Items with the same prompt have the same owner.
select suite, item_id, 'prompt' as part, prompt as text, prompt as owner
from eval_items
where prompt is not null
union all
select suite, item_id, 'answer', answer, coalesce(prompt, item_id)
from eval_items
where answer is not null

-- name: day_contents
-- A fingerprint of each day's texts: a day is searched again when it changes. hash() may differ between DuckDB versions, which
-- costs one more search.
create or replace temp table day_contents as
select
    dt,
    concat_ws(' ', count(*), bit_xor(hash(interaction_id, normalised_sha256)), sum(hash(normalised_sha256, interaction_id)))
        as content
from cleaned_rows
where status = 'ok'
group by dt

-- name: days_to_search
-- Days that were not searched for these items yet.
create or replace temp table days_to_search as
select dt
from day_contents
anti join contamination on contamination.dt = day_contents.dt and contamination.content = day_contents.content
    and contamination.searched = $searched and contamination.interaction_id is null

-- name: days_to_search_listed
-- Days to search, in order.
select dt from days_to_search order by dt

-- name: searched_rows
-- Rows of the days to search.
create or replace temp view searched_rows as
select interaction_id as row_id, messages, completion
from cleaned_interactions
where status = 'ok' and dt in (select dt from days_to_search)

-- name: found_by_day
-- Rows for the table `contamination`: the finds, and one row without interaction_id for every day that was searched.
select
    $workload as workload, dt, $searched as searched, content, finds.interaction_id, suite, item_id, part, share, own, words,
    message
from finds
join cleaned_rows using (interaction_id)
join day_contents using (dt)
union all
select $workload, dt, $searched, content, null, null, null, null, null, null, null, null
from days_to_search
join day_contents using (dt)

-- name: stored_finds
-- Stored finds for the same items, in days as they are now.
create or replace temp table finds as
select contamination.interaction_id, suite, item_id, part, share, own, words, message
from contamination
join day_contents using (dt, content)
where searched = $searched and contamination.interaction_id is not null

-- name: contaminated
-- Rows that contain evaluation items. Of an item's words, those do not count that two different messages have without a stretch of
-- the others; if none is left, all count. Fewer than $long words must all be there.
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

-- name: searched_texts
-- Every message of the rows to search, without system prompts. Text with JSON escapes (a tool call, a record in a prompt) is
-- listed a second time with the escapes decoded: "\nthe" is not the word "nthe". This is done by pattern, since JSON inside
-- prose does not parse as a document.
with conversations_read as (
    select row_id, conversation_of(messages, completion) as conversation
    from searched_rows
),
messages as (
    select row_id, unnest(conversation) as message
    from conversations_read
),
texts as (
    select row_id, message_text(message) as text
    from messages
    where coalesce(message.role, '') not in ('system', 'developer')
),
unescaped as (  -- except \u00e9, which the JSON reader decodes below if the rest of the text is valid JSON
    select row_id, regexp_replace(regexp_replace(text, '\\["\\/bfnrt]', ' ', 'g'), '["\x00-\x1f]', ' ', 'g') as text
    from texts
    where contains(text, '\')
)
select row_id, text from texts
union all
select row_id, case when contains(text, '\u') then coalesce(try_cast('"' || text || '"' as json) ->> '$', text) else text end
from unescaped

-- name: finds
-- Rows that may contain evaluation items: for each row and item, the share of the item's own words that the row's n-grams cover.
-- `grams` are the items' n-grams (start: the first word's position), `hits` the rows and messages where they occur, `own_words` the
-- words that no other item of the suite has. `words` (numbers of the covered own words) is null unless a stretch of them is missing
-- in a message that has other words as well: such a find may be of text that is the traffic's own.
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

-- name: suite_report
-- Items found in the traffic and rows that contain one, by suite.
select
    suites.suite,
    suites.items,
    count(distinct contaminated.item_id)::bigint as items_found,
    count(distinct contaminated.interaction_id)::bigint as rows_holding_items
from (select suite, count(*)::bigint as items from eval_items group by suite) as suites
left join contaminated using (suite)
group by suites.suite, suites.items
order by suites.suite
