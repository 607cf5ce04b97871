-- OTLP spans without content and log records with the content of a span. span_id: trace and span; moment: nanoseconds.
-- makes: temp table span_sides (object, row, place, side, span_id, moment, service, item)
create or replace temp table span_sides (
    object integer, row bigint, place integer, side varchar, span_id varchar, moment bigint, service varchar, item varchar
)
