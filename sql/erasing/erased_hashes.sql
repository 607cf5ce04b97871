-- All hashes of this erasure: what was asked, and what follows from it.
-- needs: asked, further_tombstones
-- makes: temp table erased_hashes (kind, sha256)
create or replace temp table erased_hashes as
select kind, sha256 from asked
union
select kind, sha256 from further_tombstones
