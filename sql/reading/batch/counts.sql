-- Outcomes of the batch's records by day. Quarantined and skipped records count under their object's day; `attached` is
-- feedback that came inside an interaction's record.
-- needs: batch, erased_feedback, quarantined, row_decisions, skipped, staged, staged_feedback
-- makes: rows (day, objects, kept, repeated, erased, skipped, quarantined, feedback, attached)
with outcomes as (
    select dt as day, 'kept' as outcome
    from staged
    anti join (select object, row, part from row_decisions where fresh and not kept) as left_out using (object, row, part)
    union all
    select dt as day, case rule when 'erased' then 'erased' else 'repeated' end as outcome
    from row_decisions
    where fresh and not kept
    union all
    select cast(batch.fallback_ts as date) as day, 'skipped' as outcome
    from skipped
    inner join batch using (object)
    union all
    select cast(batch.fallback_ts as date) as day, 'quarantined' as outcome
    from quarantined
    inner join batch using (object)
    union all
    select
        dt as day, case when erased_feedback.object is null then if(extra, 'attached', 'feedback') when not extra then 'erased' end as outcome
    from staged_feedback
    left join erased_feedback using (object, row, part)
    where not copied
    union all
    select cast(fallback_ts as date) as day, 'object' as outcome
    from batch
)

select
    day,
    count(*) filter (outcome = 'object') as objects,
    count(*) filter (outcome = 'kept') as kept,
    count(*) filter (outcome = 'repeated') as repeated,
    count(*) filter (outcome = 'erased') as erased,
    count(*) filter (outcome = 'skipped') as skipped,
    count(*) filter (outcome = 'quarantined') as quarantined,
    count(*) filter (outcome = 'feedback') as feedback,
    count(*) filter (outcome = 'attached') as attached
from outcomes
group by day
order by day
