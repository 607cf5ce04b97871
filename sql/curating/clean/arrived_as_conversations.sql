-- Raw rows as input of curating/clean/row_feedback.sql and pii_candidates.sql.
-- needs: arrived
-- makes: temp view conversations (*)
create or replace temp view conversations as select * from arrived
