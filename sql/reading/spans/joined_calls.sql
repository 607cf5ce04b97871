-- Calls of spans that were joined with their log records, of some lines; as sql/reading/formats/otlp/calls.sql makes them of
-- single items. Their further choices count on from a number that no other row of the line has.
-- needs: joined_call_of(), joined_spans, lines, otlp_call()
-- makes: temp table otlp_calls (object, row, place, further, service, item, call)
create or replace temp table otlp_calls as
select
    joined_spans.object,
    joined_spans.row,
    joined_spans.place,
    1500000 as further,
    joined_spans.service,
    joined_spans.item,
    otlp_call(joined_call_of(joined_spans.item, joined_spans.events)) as call
from joined_spans
semi join lines using (object, row)
