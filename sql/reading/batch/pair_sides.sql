-- Records of the batch that are one side of a pair; side is null where a record is neither.
create or replace temp table halves (object integer, row bigint, side varchar, custom_id varchar, raw varchar)
