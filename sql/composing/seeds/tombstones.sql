-- Hashes of erased data.
-- needs: erased_hashes
-- makes: rows (kind, sha256)
select kind, sha256
from erased_hashes
order by kind, sha256
