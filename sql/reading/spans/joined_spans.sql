-- One row for each span id with log records: the place of its row, the span (null if only its log records are known), and
-- the log records in the order of time. number: the page of a line, so that a page has about $page_bytes of text.
-- needs: ranked_sides
-- parameters: $page_bytes
-- makes: temp table joined_spans (number, object, row, place, service, source, span_id, item, events)
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
    object,
    row,
    place,
    service,
    source,
    span_id,
    case when side = 'span' then item end as item,
    events
from ranked_sides
inner join logged using (source, span_id)
where ranked_sides.rank = 1
