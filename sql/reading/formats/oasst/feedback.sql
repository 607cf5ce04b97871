-- Feedback of OASST trees: people's ranking of the answers to a message; rank 0 is the best.
-- needs: oasst_answers()
-- makes: rows (object, row, part, extra, about_part, name, written_value, source, written_ts)
with ranked as (
    select *, try_cast(node ->> '$.rank' as double) as rank, place[:len(place) - 1] as parent
    from oasst_answers()
),

spread as (
    select *, max(rank) over (partition by object, row, parent) as last_rank
    from ranked
)

select
    object,
    row,
    part,
    true as extra,
    part as about_part,
    'preference' as name,
    cast(1 - 2 * rank / last_rank as varchar) as written_value,
    'rank' as source,
    node ->> '$.created_date' as written_ts
from spread
where rank is not null and last_rank > 0
