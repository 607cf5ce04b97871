-- name: sides_found
-- The kinds of parts of calls in the batch: span, event.
select distinct side
from span_sides

-- name: ranked_sides
-- The spans and log records of each span id in a source, with their order. The first one is where the joined row belongs: the
-- span, or without one the earliest log record. copy numbers log records that were sent more than once.
create or replace temp table ranked_sides as
select
    span_sides.*,
    batch.source,
    batch.uri,
    row_number() over (
        partition by batch.source, span_sides.span_id
        order by span_sides.side = 'span' desc, span_sides.moment, batch.uri, span_sides.row, span_sides.place
    ) as rank,
    row_number() over (
        partition by batch.source, span_sides.span_id, span_sides.side, span_sides.item
        order by batch.uri, span_sides.row, span_sides.place
    ) as copy
from span_sides
inner join batch using (object)

-- name: joined_spans
-- One row for each span id with log records: the place of its row, the span (null if only its log records are known), and
-- the log records in the order of time. number: the page of a line, so that a page has about $page_bytes of text.
create or replace temp table joined_spans as
with logged as (
    select
        source,
        span_id,
        concat('[', string_agg(item, ',' order by moment, uri, row, place), ']') as events
    from ranked_sides
    where side = 'event' and copy = 1
    group by source, span_id
)
select
    sum(strlen(coalesce(item, '')) + strlen(events)) over (order by object, row) // $page_bytes as number,
    object, row, place, service, source, span_id,
    case when side = 'span' then item end as item,
    events
from ranked_sides
inner join logged using (source, span_id)
where ranked_sides.rank = 1

-- name: skip_spans
-- Spans without content and without log records: they are no interactions.
insert into skipped
select object, row, $workload as workload, 'otlp_call_without_content' as rule
from ranked_sides
anti join joined_spans using (object, row, place)
where side = 'span'

-- name: partners
-- Pairs of objects with parts of one joined row, in both directions.
with shared as (
    select distinct joined_spans.object, ranked_sides.object as other
    from joined_spans
    inner join ranked_sides using (source, span_id)
    where joined_spans.object <> ranked_sides.object
)
select object, other from shared
union
select other, object from shared

-- name: open_objects
-- Objects whose spans have no log records yet, or whose log records have no span.
select
    ranked_sides.object,
    bool_or(ranked_sides.side = 'span') as has_spans,
    bool_or(ranked_sides.side = 'event') as has_events
from ranked_sides
left join joined_spans using (source, span_id)
where joined_spans.item is null
group by ranked_sides.object

-- name: objects_with_spans
-- Objects with spans that take log records.
select distinct object
from ranked_sides
where side = 'span'

-- name: record_counts
-- What to add to the number of records of each object. The first item of a line was counted with the line; a log record that
-- is part of another record is none of its own, and a further span that is skipped is one.
select
    ranked_sides.object,
    count(*) filter (ranked_sides.side = 'span' and ranked_sides.place > 0)
    - count(*) filter (ranked_sides.side = 'event' and ranked_sides.place = 0) as added
from ranked_sides
anti join joined_spans using (object, row, place)
group by ranked_sides.object

-- name: pages
-- Pages of joined spans.
select distinct number
from joined_spans
order by number

-- name: lines
-- The lines of a page of joined spans.
select object, row, coalesce(min(item), min(events)) as raw
from joined_spans
where number = $number
group by object, row
order by object, row

-- name: rows_elsewhere
-- Objects with rows of the spans whose log records came without them.
select distinct interactions.source_uri as uri
from interactions
inner join joined_spans
    on coalesce(interactions.alias_id, interactions.request_id) = joined_spans.span_id
    and interactions.source = joined_spans.source
anti join batch on interactions.source_uri = batch.uri
where joined_spans.item is null

-- name: joined_calls
-- Calls of spans that were joined with their log records, of some lines; as reading/formats/otlp/calls makes them of
-- single items. Their further choices count on from a number that no other row of the line has.
create or replace temp table otlp_calls as
select
    joined_spans.object, joined_spans.row, joined_spans.place,
    1500000 as further,
    joined_spans.service,
    joined_spans.item,
    otlp_call(joined_call_of(joined_spans.item, joined_spans.events, joined_spans.source)) as call
from joined_spans
semi join lines using (object, row)

-- name: quarantine_joined
-- One quarantine row per row of joined spans that failed a check, with the start of its span.
insert into quarantined by name
select
    staged.object, staged.row, staged.error_code, staged.message,
    encode(coalesce(joined_spans.item, joined_spans.events, lines.raw))[:4096] as raw
from staged
inner join lines using (object, row)
left join joined_spans
    on staged.object = joined_spans.object
    and staged.row = joined_spans.row
    and staged.part = joined_spans.place
where
    staged.error_code <> 'skipped'
    and (joined_spans.object is not null or staged.part > 1500000)  -- rows of other items of the line went there before
