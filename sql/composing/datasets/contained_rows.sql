-- Rows whose whole conversation is the beginning of a later row of their session: the longest such row carries them (of equals
-- the newest, then the least id), and `position` is where their answer stands in it.
create or replace temp table held as
with answers as (
    select * from beginnings where is_answer
),
holdings as (
    select answers.interaction_id, holder.interaction_id as holder_id, holder.position
    from answers
    join beginnings as holder using (session_id, so_far)
    where not holder.is_answer and holder.interaction_id <> answers.interaction_id
),
ranked as (
    select
        holdings.*,
        row_number() over (
            partition by holdings.interaction_id
            order by ends.position desc, curated.ts desc nulls last, holder_id
        ) as choice
    from holdings
    join answers as ends on ends.interaction_id = holder_id
    join curated on curated.interaction_id = holder_id
    where holder_id not in (select interaction_id from holdings)
)
select interaction_id, holder_id, position from ranked where choice = 1
