-- Spans without content, and log records with the content of a span.
-- needs: otlp_calls, span_sides
-- makes: rows into span_sides (object, row, place, side, span_id, moment, service, item)
insert into span_sides
select object, row, place, call.side, call.span as span_id, call.moment, service, item
from otlp_calls
where call.kind = 'side'
