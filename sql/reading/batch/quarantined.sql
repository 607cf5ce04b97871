-- Records that became no row, with their first bytes. Row 0 is the object as a whole.
-- makes: temp table quarantined (object, row, error_code, message, raw)
create or replace temp table quarantined (
    object integer, row bigint, error_code varchar, message varchar, raw blob
)
