-- Tombstones beside the asked ones: of rows that the asked hashes do not name, of ids that feedback may name, and of exchanges
-- that seeds may repeat.
-- needs: erased_exchanges, erased_ids, selected
-- parameters: $user_hash_key
-- makes: temp table further_tombstones (kind, sha256)
create or replace temp table further_tombstones as
select distinct 'interaction' as kind, sha256(concat($user_hash_key, chr(31), interaction_id)) as sha256
from selected
where because <> 'asked'
union
select distinct 'about' as kind, sha256(concat($user_hash_key, chr(31), id)) as sha256
from erased_ids
union
select 'exchange' as kind, sha256
from erased_exchanges
