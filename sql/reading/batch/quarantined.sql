-- What could not become a row, with its first bytes. row 0 is the object as a whole.
create or replace temp table quarantined (
    object integer, row bigint, error_code varchar, message varchar, raw blob
)
