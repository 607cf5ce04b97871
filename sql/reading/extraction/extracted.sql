-- What a format reads from its records, before ids, hashes and checks that all formats share: the columns that its own
-- select leaves out are null. A view, so that the text of a part is gone through once and never copied.
-- written_ts is the time as the log has it; part counts the rows of one record.
create or replace temp view extracted as
select * from no_interactions
union all by name
({rows})
