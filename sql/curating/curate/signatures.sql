-- MinHash signatures of the rows left after exact duplicates, best first.
-- needs: cleaned_rows, unique_rows
-- makes: rows (place, signature)
select unique_rows.place, signature
from cleaned_rows
join unique_rows using (interaction_id)
where unique_rows.place = unique_rows.representative and len(signature) > 0
order by unique_rows.place
