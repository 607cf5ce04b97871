-- For curating/clean/messages.sql: the curated rows, whose messages are compared to find out which turn repeats which.
create or replace temp view conversations as select interaction_id, messages, completion from curated
