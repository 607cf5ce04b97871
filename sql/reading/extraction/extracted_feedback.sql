-- Feedback as a format's select reads it; columns that it does not name are null. extra: the feedback came inside an
-- interaction's record and is not a record of its own.
-- needs: <rows>, no_feedback
-- placeholders: rows
-- makes: temp view extracted_feedback (*)
create or replace temp view extracted_feedback as
select * from no_feedback
union all by name
({rows})
