-- Pairs that share all hashes of at least one band. In a crowded bucket every row meets the eight best of the bucket and the
-- 32 before it, so that a bucket of n rows makes at most 40 n pairs, not n * n / 2.
-- hash() only sorts rows into buckets here: it is never stored, and a chance collision is thrown out by the verification.
create or replace temp table pairs as
with signed as (
    select standing.place, signature
    from cleaned_interactions
    join standing using (interaction_id)
    where standing.place = standing.stands_for and len(signature) > 0
),
bands as (
    select place, unnest(range($bands)) as band, signature
    from signed
),
buckets as (
    select place, hash(band, signature[band * $rows + 1 : (band + 1) * $rows]) as bucket
    from bands
),
queues as (
    select
        place, bucket,
        row_number() over (partition by bucket order by place) as position,
        count(*) over (partition by bucket) as size
    from buckets
),
meetings as (
    select
        place, bucket,
        unnest(list_distinct(list_concat(
            range(1, least(9, position)), range(greatest(1, position - 32), position)
        ))) as position
    from queues
    where size > 1
)
select distinct queues.place as better, meetings.place as worse
from meetings
join queues using (bucket, position)
where queues.place < meetings.place
