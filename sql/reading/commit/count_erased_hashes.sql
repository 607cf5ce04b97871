-- Number of hashes of erased data.
-- needs: erased_hashes
-- makes: rows (hashes)
select count(*) as hashes from erased_hashes
