-- What became of the rows of this batch, by day. Quarantined and skipped rows and objects count under their object's day; attached is
-- feedback that came along with an interaction's record.
with fates as (
    select dt as day, 'kept' as fate
    from staged
    anti join (select object, row, part from judged where fresh and not kept) as left_out using (object, row, part)
    union all
    select dt as day, case rule when 'erased' then 'erased' else 'repeated' end as fate
    from judged
    where fresh and not kept
    union all
    select cast(batch.fallback_ts as date) as day, 'skipped' as fate
    from skipped
    inner join batch using (object)
    union all
    select cast(batch.fallback_ts as date) as day, 'quarantined' as fate
    from quarantined
    inner join batch using (object)
    union all
    select dt as day, case when extra then 'attached' else 'feedback' end as fate
    from staged_feedback
    where not copied
    union all
    select cast(fallback_ts as date) as day, 'object' as fate
    from batch
)

select
    day,
    count(*) filter (fate = 'object') as objects,
    count(*) filter (fate = 'kept') as kept,
    count(*) filter (fate = 'repeated') as repeated,
    count(*) filter (fate = 'erased') as erased,
    count(*) filter (fate = 'skipped') as skipped,
    count(*) filter (fate = 'quarantined') as quarantined,
    count(*) filter (fate = 'feedback') as feedback,
    count(*) filter (fate = 'attached') as attached
from fates
group by day
order by day
