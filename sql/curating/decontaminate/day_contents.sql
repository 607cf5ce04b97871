-- What the search of a day depends on: its rows' texts. normalised_sha256 covers all that is said in a row; hash() may differ
-- between versions of DuckDB, which costs one more search.
create or replace temp table day_contents as
select
    dt,
    concat_ws(' ', count(*), bit_xor(hash(interaction_id, normalised_sha256)), sum(hash(normalised_sha256, interaction_id)))
        as content
from cleaned_interactions
where status = 'ok'
group by dt
