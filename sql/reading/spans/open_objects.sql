-- Objects whose spans have no log records yet, or whose log records have no span.
-- needs: joined_spans, ranked_sides
-- makes: rows (object, has_spans, has_events)
select
    ranked_sides.object,
    bool_or(ranked_sides.side = 'span') as has_spans,
    bool_or(ranked_sides.side = 'event') as has_events
from ranked_sides
left join joined_spans using (source, span_id)
where joined_spans.item is null
group by ranked_sides.object
