-- Whole sessions, drawn by hash: the same ones whenever it is asked.
-- $share: of the rows, about
select interactions.*
from interactions
where ('0x' || md5(coalesce(session_id, interaction_id))[1:8])::ubigint / 4294967296.0 < $share
