-- Rows whose whole conversation is the beginning of a later row of their session. The longest such row contains them (ties: the
-- newest, then the smallest id); `position` is where their answer is in it.
-- needs: curated, prefixes
-- makes: temp table contained_rows (interaction_id, container_id, position)
create or replace temp table contained_rows as
with answers as (
    select * from prefixes where is_answer
),
containments as (
    select answers.interaction_id, container.interaction_id as container_id, container.position
    from answers
    join prefixes as container using (session_id, prefix_hash)
    where not container.is_answer and container.interaction_id <> answers.interaction_id
),
ranked as (
    select
        containments.*,
        row_number() over (
            partition by containments.interaction_id
            order by ends.position desc, curated.ts desc nulls last, container_id
        ) as choice
    from containments
    join answers as ends on ends.interaction_id = container_id
    join curated on curated.interaction_id = container_id
    where container_id not in (select interaction_id from containments)
)
select interaction_id, container_id, position from ranked where choice = 1
