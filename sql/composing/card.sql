-- name: rows
-- The rows that the card describes: those of the files of a dataset.
-- placeholders: files
create or replace temp view card_rows as
select split, source, synthetic, weight, prompt_shape, language, text, messages
from read_parquet([{files}])

-- name: lengths
-- Rows and lengths in characters of each split: of messages as JSON, or of plain text. Token ids have no characters.
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

-- name: mixture
-- Training rows by source.
select
    source, synthetic, count(*)::bigint as rows, count(*) / sum(count(*)) over () as share,
    avg(weight) as weight
from card_rows
where split = 'train'
group by source, synthetic
order by source, synthetic

-- name: languages
-- Rows of all splits by language of the answer.
select coalesce(language, '') as language, count(*)::bigint as rows
from card_rows
group by all
order by rows desc, language

-- name: shapes
-- Share of each prompt shape in each split. A shape of fewer than five rows is not named: it may show a person's own words.
with counted as (
    select coalesce(prompt_shape, '') as shape, split, count(*) as rows
    from card_rows
    group by all
),
shares as (
    select *, rows / sum(rows) over (partition by split) as share, sum(rows) over (partition by shape) as all_rows
    from counted
)
select
    shape, any_value(all_rows)::bigint as rows,
    coalesce(max(share) filter (where split = 'train'), 0) as train,
    coalesce(max(share) filter (where split = 'validation'), 0) as validation,
    coalesce(max(share) filter (where split = 'test'), 0) as test
from shares
where all_rows >= 5
group by shape
order by rows desc, shape
limit 12

-- name: by_reason
-- Rows of a dataset by split, source and reason.
with counted as (
    select split, source, reason, count(*)::bigint as rows
    from read_parquet($files, union_by_name = true)
    group by all
)
select split, source, reason, rows
from counted
order by list_position(['train', 'validation', 'test'], split), rows desc, source, reason

-- name: sides
-- Training pairs by reason: characters of both messages as JSON, and how often the chosen one is longer.
select
    reason, count(*)::bigint as pairs, any_value(confidence) as confidence, median(length(chosen))::bigint as chosen,
    median(length(rejected))::bigint as rejected, avg(if(length(chosen) > length(rejected), 1, 0)) as longer
from read_parquet($file)
group by reason
order by pairs desc, reason

-- name: verdicts
-- Answers with a verdict of their own, by split and reason.
select
    split, reason, count(*) filter (desirable)::bigint as wanted, count(*) filter (not desirable)::bigint as unwanted,
    any_value(confidence) as confidence, median(length(answer))::bigint as characters
from read_parquet($files)
group by split, reason
order by list_position(['train', 'validation', 'test'], split), reason
