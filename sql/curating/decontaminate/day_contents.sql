-- A fingerprint of each day's texts: a day is searched again when it changes. hash() may differ between DuckDB versions, which
-- costs one more search.
-- needs: cleaned_rows
-- makes: temp table day_contents (dt, content)
create or replace temp table day_contents as
select
    dt,
    concat_ws(' ', count(*), bit_xor(hash(interaction_id, normalised_sha256)), sum(hash(normalised_sha256, interaction_id)))
        as content
from cleaned_rows
where status = 'ok'
group by dt
