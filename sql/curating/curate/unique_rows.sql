-- Rows left after feedback, quality and decontamination. `representative` is the best of a row's exact copies.
-- needs: candidates, contaminated
-- parameters: $exact_duplicates
-- makes: temp table unique_rows (place, interaction_id, representative)
create or replace temp table unique_rows as
with clean_rows as (
    select place, interaction_id, normalised_sha256
    from candidates
    where not thumbs_down and not low_quality and interaction_id not in (select interaction_id from contaminated)
)
select
    place, interaction_id,
    case
        when $exact_duplicates then min(place) over (partition by normalised_sha256)
        else place
    end as representative
from clean_rows
