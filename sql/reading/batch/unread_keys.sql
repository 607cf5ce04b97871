-- Keys of the batch's records that nothing reads (kind unread; other: the field that would read them), and names of one column
-- that contradict each other (kind clash; path: the column and the name that is read, other: the name that is not).
-- makes: temp table unread_keys (object, kind, path, other, records)
create or replace temp table unread_keys (object integer, kind varchar, path varchar, other varchar, records bigint)
