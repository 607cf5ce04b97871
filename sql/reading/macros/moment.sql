-- A logged time as a timestamp, in any form that loggers write. Null for a form that is not known, and outside the years 2000 to
-- 2100.
-- needs: moment_of(), plain_moment()
-- makes: macro moment(written)
create or replace temp macro moment(written) as
case when written is not null then coalesce(plain_moment(written), plain_moment(moment_of(written))) end
