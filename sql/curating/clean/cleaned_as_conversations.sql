-- From here on, a conversation is what it is after redaction.
create or replace temp view conversations as select * from cleaned
