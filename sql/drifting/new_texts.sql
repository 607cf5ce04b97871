-- The last message of each request of a day, with the number of its session.
-- needs: sessions, traffic
-- makes: rows (number, new_text)
select number, new_text
from traffic
join sessions using (session)
where new_text is not null
