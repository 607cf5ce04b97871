-- Rows after redaction as input of curating/clean/texts.sql.
-- needs: cleaned
-- makes: temp view conversations (*)
create or replace temp view conversations as select * from cleaned
