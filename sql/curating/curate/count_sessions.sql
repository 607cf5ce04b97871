-- Number of sessions.
-- needs: sessions
-- makes: rows (count_star)
select count(*) from sessions
