-- Number of curated rows.
-- needs: curated
-- makes: rows (count_star)
select count(*) from curated
