-- The sessions of a day, numbered from 0.
-- needs: traffic
-- makes: temp table sessions (session, number)
create or replace temp table sessions as
select session, row_number() over (order by session) - 1 as number
from (select distinct session from traffic)
