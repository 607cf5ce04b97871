-- For each response the requests of its folder with its custom_id, those of its name only where there are any.
create or replace temp table pairing as
with sides as (
    select halves.*, places.source, places.folder, places.stem
    from halves
    inner join places using (object)
),

matches as (
    select
        said.object,
        said.row,
        asked.object as asked_object,
        asked.row as asked_row,
        said.stem = asked.stem as same_stem
    from sides as said
    inner join sides as asked
        on said.source = asked.source
        and said.folder = asked.folder
        and said.custom_id = asked.custom_id
        and said.side = 'response'
        and asked.side = 'request'
),

nearest as (
    select *
    from matches
    qualify same_stem = max(same_stem) over (partition by object, row)
)

select *, count(*) over (partition by object, row) as candidates
from nearest
