-- Number of objects that wait to be read.
-- needs: waiting_objects
-- makes: rows (count_star)
select count(*) from waiting_objects
