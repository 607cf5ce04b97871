-- For clean/feedback.sql and clean/pii_candidates.sql: the rows as they arrived.
create or replace temp view conversations as select * from arrived
