-- Tells records of one id apart: the ids of data sets' records often begin anew in each file. The same record in another file,
-- or at the end of one, has the same digest.
create or replace temp macro record_digest(raw) as md5(trim(raw, ' ' || chr(9) || chr(10) || chr(13)))
