-- Pairs of objects with parts of one joined row, in both directions.
-- needs: joined_spans, ranked_sides
-- makes: rows (object, other)
with shared as (
    select distinct joined_spans.object, ranked_sides.object as other
    from joined_spans
    inner join ranked_sides using (source, span_id)
    where joined_spans.object <> ranked_sides.object
)

select object, other from shared
union
select other, object from shared
