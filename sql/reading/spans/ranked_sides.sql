-- The spans and log records of each span id in a source, with their order. The first one is where the joined row belongs: the
-- span, or without one the earliest log record. copy numbers log records that were sent more than once.
-- needs: batch, span_sides
-- makes: temp table ranked_sides (span_sides.*, source, uri, rank, copy)
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
