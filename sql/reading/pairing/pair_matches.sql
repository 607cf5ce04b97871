-- For each response, the requests of its folder with its custom_id; only those with its file name, if there are any.
-- needs: pair_sides, places
-- parameters: $form
-- makes: temp table pair_matches (*, candidates)
create or replace temp table pair_matches as
with sides as (
    select pair_sides.*, places.source, places.folder, places.stem
    from pair_sides
    inner join places using (object)
    where pair_sides.form = $form
),

matches as (
    select
        responses.object,
        responses.row,
        requests.object as request_object,
        requests.row as request_row,
        responses.stem = requests.stem as same_stem
    from sides as responses
    inner join sides as requests
        on responses.source = requests.source
        and responses.folder = requests.folder
        and responses.custom_id = requests.custom_id
        and responses.side = 'response'
        and requests.side = 'request'
),

nearest as (
    select *
    from matches
    qualify same_stem = max(same_stem) over (partition by object, row)
)

select *, count(*) over (partition by object, row) as candidates
from nearest
