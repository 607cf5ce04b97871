-- Whole sessions sampled by hash, the same at every run. $share: about this share of the rows
-- needs: interactions
-- parameters: $share
-- makes: rows (interactions.*)
select interactions.*
from interactions
where ('0x' || md5(coalesce(session_id, interaction_id))[1:8])::ubigint / 4294967296.0 < $share
