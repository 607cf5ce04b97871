-- Number of curated rows and seeds.
-- needs: curated, seeds
-- makes: rows (rows)
select (select count(*) from curated) + (select count(*) from seeds) as rows
