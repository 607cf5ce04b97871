-- The rows still in after people's word and the evaluation suites; of exact copies the best one stands for all.
create or replace temp table standing as
with clean_rows as (
    select place, interaction_id, normalised_sha256
    from entrants
    where not thumbs_down and not low_quality and interaction_id not in (select interaction_id from contaminated)
)
select
    place, interaction_id,
    case
        when $exact_duplicates then min(place) over (partition by normalised_sha256)
        else place
    end as stands_for
from clean_rows
