-- For curating/clean/row_feedback.sql and curating/clean/pii_candidates.sql: the rows as they arrived.
create or replace temp view conversations as select * from arrived
