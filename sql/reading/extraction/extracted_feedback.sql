-- Feedback as a format reads it; the columns that its own select leaves out are null.
-- extra: it came along with an interaction's record and is no record of its own.
create or replace temp view extracted_feedback as
select * from no_feedback
union all by name
({rows})
