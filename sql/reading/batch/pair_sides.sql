-- Records that are one side of a request-response pair; side is null where a record is neither. form: their format.
-- makes: temp table pair_sides (form, object, row, side, custom_id, raw)
create or replace temp table pair_sides (
    form varchar, object integer, row bigint, side varchar, custom_id varchar, raw varchar
)
