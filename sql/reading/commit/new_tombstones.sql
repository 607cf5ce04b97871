-- Hashes of newly erased ids that no tombstone has yet.
-- needs: erased_hashes, newly_erased_ids
-- makes: rows (sha256)
select sha256
from newly_erased_ids
anti join erased_hashes using (sha256)
order by sha256
