-- The shortest signature there is: rows cleaned under other settings cannot be compared with the rest.
select coalesce(
    min(len(signature)) filter (where len(signature) <> $hashes), $hashes
) as hashes
from cleaned_interactions
where len(signature) > 0
