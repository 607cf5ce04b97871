-- Rows left after exact and near duplicates, best first.
-- needs: near_duplicates, unique_rows
-- makes: rows (place)
select unique_rows.place
from unique_rows
left join near_duplicates on near_duplicates.place = unique_rows.place
where unique_rows.place = unique_rows.representative and coalesce(near_duplicates.best, unique_rows.place) = unique_rows.place
order by unique_rows.place
