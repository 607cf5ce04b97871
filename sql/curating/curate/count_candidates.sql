-- Number of rows that reach curation.
-- needs: candidates
-- makes: rows (count_star)
select count(*) from candidates
