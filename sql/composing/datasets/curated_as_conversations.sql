-- Curated rows as input of curating/clean/messages.sql, which finds repeated turns.
-- needs: curated
-- makes: temp view conversations (interaction_id, messages, completion)
create or replace temp view conversations as select interaction_id, messages, completion from curated
