-- Records that are one side of a request-response pair; side is null where a record is neither.
-- makes: temp table pair_sides (object, row, side, custom_id, raw)
create or replace temp table pair_sides (object integer, row bigint, side varchar, custom_id varchar, raw varchar)
